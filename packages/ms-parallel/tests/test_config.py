import pytest
from ms_parallel import ConfigError, ParallelConfig, from_mapping


def test_defaults_are_data_parallelism_over_all_ranks():
    assert from_mapping(ParallelConfig, {}, "parallel") == ParallelConfig(data=0, tensor=1, engine="spmd")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tensr": 2}, r"parallel\.tensr: unknown key; did you mean tensor\?"),
        ({"tensor": 0}, r"parallel\.tensor: expected an integer >= 1, found 0"),
        ({"tensor": "2"}, r"parallel\.tensor: expected int, found '2'"),
        ({"data": True}, r"parallel\.data: expected int, found True"),
        ({"engine": "zero"}, r"parallel\.engine: expected spmd or auto, found 'zero'"),
        ({"recompute": True}, r"parallel\.recompute: expected str, found True"),
    ],
)
def test_wrong_settings_are_refused_by_path(values, message):
    with pytest.raises(ConfigError, match=message):
        from_mapping(ParallelConfig, values, "parallel")
