import threading

import pytest
from ms_dataprep.read_ahead import read_ahead


@pytest.mark.parametrize("num_threads", [1, 3])
def test_values_come_in_order_made_by_other_threads(num_threads: int) -> None:
    made_in = set()

    def make(key: int) -> int:
        made_in.add(threading.current_thread().name)
        return key * key

    assert list(read_ahead(make, range(200), depth=5, num_threads=num_threads)) == [key * key for key in range(200)]
    assert threading.current_thread().name not in made_in


def test_an_error_comes_in_its_turn() -> None:
    values = read_ahead(lambda key: 1 // (3 - key), range(9), depth=4, num_threads=2)

    assert [next(values) for _ in range(3)] == [0, 0, 1]
    with pytest.raises(ZeroDivisionError):
        next(values)


def test_endless_keys_are_made_only_as_far_ahead_as_asked() -> None:
    made = []
    values = read_ahead(lambda key: made.append(key) or key, iter(lambda: len(made), -1), depth=3, num_threads=1)

    next(values)
    values.close()

    assert len(made) <= 6
