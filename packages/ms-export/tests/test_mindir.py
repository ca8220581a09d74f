import mindspore as ms
import ms_export
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from ms_export.errors import BundleError, ModelError
from ms_export.mindir import evaluation_mode, export_graph, int32

INPUTS = ([[1, 2, 3, 4]], [4], [0])


def _inputs():
    return [int32(np.array(values, np.int32)) for values in INPUTS]


@pytest.mark.slow
def test_a_model_in_train_mode_is_exported_with_dropout_off_and_keeps_its_flags(toy, small, tmp_path):
    reference = toy.cached_model(small).prefill(*_inputs()).asnumpy().copy()
    model = toy.cached_model(small)
    model.prefill.set_train(True)
    flags = [cell.training for _, cell in model.prefill.cells_and_names()]
    trained = [model.prefill(*_inputs()).asnumpy().copy() for _ in range(2)]

    folder = ms_export.build(tmp_path / "trained", model=model, config=small)

    assert not np.allclose(*trained, atol=1e-2), "the model in train mode does drop, or this test shows nothing"
    assert [cell.training for _, cell in model.prefill.cells_and_names()] == flags
    logits = ms_export.Runtime(folder).prefill(INPUTS[0], [0])
    np.testing.assert_allclose(logits, reference, atol=1e-6)


def test_flags_of_a_model_that_trains_in_parts_are_restored_one_by_one(toy, small):
    cell = toy.cached_model(small).prefill
    cell.set_train(True)
    cell.toy.dropout.set_train(False)
    flags = [inner.training for _, inner in cell.cells_and_names()]

    with evaluation_mode(cell):
        inside = [inner.training for _, inner in cell.cells_and_names()]

    assert inside == [False] * len(flags)
    assert [inner.training for _, inner in cell.cells_and_names()] == flags
    assert len(set(flags)) == 2


def test_graphs_use_contract_names_whatever_wrapping_made_of_them(toy, small):
    model = toy.cached_model(small)
    before = [p.name for p in model.prefill.get_parameters()]

    exported = export_graph(model.prefill, _inputs(), {**model.weights, **model.cache})

    assert exported.parameters == {*model.weights, *model.cache}
    assert "embedding.weight" not in before
    assert [p.name for p in model.prefill.get_parameters()] == before


def test_a_cell_that_mindspore_cannot_compile_is_refused_by_name(toy, small, tmp_path, monkeypatch):
    class Strange(toy.nn.Cell):
        def construct(self, input_ids, lengths, slots):
            return input_ids.no_such_method()

    monkeypatch.chdir(tmp_path)  # MindSpore leaves its analysis in the working folder

    with pytest.raises(ModelError, match=r"Strange: MindSpore cannot export it: .*no_such_method"):
        export_graph(Strange(), _inputs(), {})


def test_all_graphs_share_one_copy_of_weights_and_cache(runtime):
    pointers = {}
    runtime.warm_up()
    for cell in runtime._cells.values():
        for parameter in cell.get_parameters():
            pointers.setdefault(parameter.name, set()).add(parameter.data_ptr())

    assert len(pointers) == 9
    assert all(len(found) == 1 for found in pointers.values())


def test_a_graph_that_is_none_is_refused(tmp_path):
    from ms_export.mindir import load_graphs

    (tmp_path / "bad.mindir").write_bytes(b"not a graph")

    with pytest.raises(BundleError, match=r"bad\.mindir: MindSpore .* cannot load it"):
        load_graphs({"bad.mindir": tmp_path / "bad.mindir"}, {}, {})


@pytest.mark.slow
def test_graphs_are_the_same_from_graph_mode_and_pynative(toy, small, tmp_path):
    mode = ms.get_context("mode")
    logits = []
    try:
        for n, chosen in enumerate((ms.GRAPH_MODE, ms.PYNATIVE_MODE)):
            ms.set_context(mode=chosen)
            folder = ms_export.build(tmp_path / str(n), model=toy.cached_model(small), config=small)
            logits.append(ms_export.Runtime(folder).prefill(INPUTS[0], [0]))
            assert ms.get_context("mode") == chosen
    finally:
        ms.set_context(mode=mode)

    assert np.array_equal(*logits)


def test_constants_travel_with_the_weights(toy, small, tmp_path):
    class Scaled(nn.Cell):
        def __init__(self, inner, table):
            super().__init__()
            self.inner, self.table = inner, table

        def construct(self, input_ids, lengths, slots):
            return self.inner(input_ids, lengths, slots) * self.table

    model = toy.cached_model(small)
    table = Parameter(Tensor(np.linspace(0.5, 2, 64), ms.float32), requires_grad=False)
    scaled = ms_export.CachedModel(
        prefill=Scaled(model.prefill, table), decode=model.decode, weights={**model.weights, "constant.scale": table},
        cache=model.cache, slots=model.slots, max_length=model.max_length, config=model.config,
    )  # fmt: skip

    folder = ms_export.build(tmp_path / "scaled", model=scaled, config=small)

    logits = ms_export.Runtime(folder).prefill(INPUTS[0], [0])
    np.testing.assert_allclose(logits, scaled.prefill(*_inputs()).asnumpy(), rtol=1e-5, atol=1e-6)
