import pytest
from ms_parallel import Rank, RankError, current_rank

MSRUN = {"MS_ROLE": "MS_WORKER", "RANK_ID": "1", "MS_NODE_ID": "1", "RANK_SIZE": "4", "MS_WORKER_NUM": "4"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


def test_without_a_launcher_there_is_one_rank():
    assert current_rank({}) == Rank(rank=0, world_size=1, local_rank=0)
    assert current_rank({"RANK_ID": "0", "DEVICE_ID": "3"}) == Rank(rank=0, world_size=1, local_rank=3)


def test_msrun_and_mpirun_are_understood():
    assert current_rank({**MSRUN, "DEVICE_ID": "1"}) == Rank(rank=1, world_size=4, local_rank=1)
    assert current_rank(MPIRUN) == Rank(rank=3, world_size=4, local_rank=1)
    assert current_rank({**MSRUN, "MS_ROLE": "MS_SCHED"}).is_scheduler


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK_SIZE": "4"}, "world size 4, but no rank: .* every process would take itself for rank 0"),
        ({"RANK_ID": "2"}, "rank 2, but no world size"),
        ({**MSRUN, **MPIRUN}, "two launchers disagree: RANK_ID=1, MS_NODE_ID=1, OMPI_COMM_WORLD_RANK=3"),
        ({**MSRUN, "MS_WORKER_NUM": "2"}, "two launchers disagree: RANK_SIZE=4, MS_WORKER_NUM=2"),
        ({"RANK_ID": "4", "RANK_SIZE": "4"}, "rank 4 in a world of 4; ranks go from 0 to 3"),
        ({"RANK_ID": "-1", "RANK_SIZE": "4"}, "RANK_ID='-1': expected a whole number"),
        ({"RANK_ID": "0", "RANK_SIZE": ""}, "RANK_SIZE='': expected a whole number"),
        ({"RANK_SIZE": "0"}, "world size 0"),
    ],
)
def test_contradictions_are_refused_by_name(environ, message):
    with pytest.raises(RankError, match=message):
        current_rank(environ)


def test_device_that_the_machine_lacks_is_refused(tmp_path):
    for name in ("davinci0", "davinci1", "davinci_manager"):
        (tmp_path / name).touch()

    assert current_rank({"DEVICE_ID": "1"}, devices=tmp_path).local_rank == 1
    with pytest.raises(RankError, match="DEVICE_ID=2: no such device; this machine has 0, 1"):
        current_rank({"DEVICE_ID": "2"}, devices=tmp_path)
