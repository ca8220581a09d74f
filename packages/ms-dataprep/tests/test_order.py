import json
from pathlib import Path

import numpy as np
from ms_dataprep.order import Order, SampleOrder, rows_at


def test_the_order_is_the_contracts_golden_one(contracts: Path) -> None:
    golden = json.loads((contracts / "batch" / "golden" / "order.json").read_text())

    for case in golden["permutations"]:
        order = Order(case["rows"], seed=case["seed"], epoch=case["epoch"])
        assert order.rows(np.arange(len(case["order"]))).tolist() == case["order"], case
    for case in golden["values"]:
        order = Order(case["rows"], seed=case["seed"], epoch=case["epoch"])
        assert order.rows(np.array([case["index"]])).tolist() == [case["row"]], case


def test_every_epoch_holds_every_row_once_in_another_order() -> None:
    epochs = [rows_at(np.arange(e * 101, e * 101 + 101), 101, seed=3).tolist() for e in range(3)]

    assert all(sorted(epoch) == list(range(101)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != rows_at(np.arange(101), 101, seed=4).tolist()


def test_a_run_over_an_epochs_end_equals_its_parts() -> None:
    whole = rows_at(np.arange(25), 10, seed=1).tolist()

    assert whole == [int(rows_at(np.array([sample]), 10, seed=1)[0]) for sample in range(25)]


def test_windows_give_the_same_rows_as_each_sample_alone() -> None:
    order = SampleOrder(5000, seed=1)
    samples = np.array([4999, 5000, 12_345_678, 0, 4095, 4096])

    assert order.rows(samples).tolist() == rows_at(samples, 5000, seed=1).tolist()
    assert SampleOrder(10, seed=1, shuffle=False).rows(np.arange(25)).tolist() == [s % 10 for s in range(25)]
