import numpy as np
import pytest


@pytest.fixture(scope="module")
def mindspore():
    import mindspore

    return mindspore


@pytest.mark.parametrize("mode", ["GRAPH_MODE", "PYNATIVE_MODE"])
def test_one_rank_sums_to_itself_without_communication(mindspore, mode):
    from ms_parallel.mindspore import AllReduceSum, broadcast_parameters, check_equal_parameters, init

    mindspore.set_context(mode=getattr(mindspore, mode))
    parameter = mindspore.Parameter(mindspore.Tensor(np.arange(3, dtype=np.float32)), name="p")

    assert init().world_size == 1
    broadcast_parameters({"p": parameter})
    check_equal_parameters({"p": parameter})
    assert AllReduceSum()(parameter).asnumpy().tolist() == [0, 1, 2]


def test_several_ranks_that_were_not_joined_are_refused(mindspore, monkeypatch):
    from ms_parallel import RankError
    from ms_parallel.mindspore import AllReduceSum

    monkeypatch.setenv("RANK_ID", "0")
    monkeypatch.setenv("RANK_SIZE", "2")

    with pytest.raises(RankError, match=r"a world of 2 ranks was not joined; call ms_parallel\.mindspore\.init"):
        AllReduceSum()
