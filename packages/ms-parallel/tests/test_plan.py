import copy
import json
import re

import jsonschema
import pytest
from ms_parallel import ParallelConfig, PlanError, check_plan, plan
from ms_parallel.placement import placement_of

GOLDEN = {
    "plan-world-1": ("parameters", {}, 1),
    "plan-data-2": ("parameters", {"micro_batches": 2}, 2),
    "plan-data-2-tensor-2-pipeline-2": ("parameters", {"tensor": 2, "pipeline": 2, "micro_batches": 4}, 8),
    "plan-tensor-2-pipeline-2-tied": ("parameters-tied", {"tensor": 2, "pipeline": 2, "micro_batches": 2}, 4),
}


@pytest.fixture
def golden(contract):
    return lambda name: json.loads((contract / "golden" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_plans_equal_the_golden_ones(golden, contract, name):
    source, settings, world_size = GOLDEN[name]
    parameters, expected = golden(source), golden(name)

    made = plan(ParallelConfig(**settings), parameters, {}, world_size)

    jsonschema.validate(made, json.loads((contract / "plan.schema.json").read_text()))
    rules = [
        [(rule["pattern"], rule["placement"]) for rule in document.pop("parameters")] for document in (made, expected)
    ]
    for parameter in parameters:
        assert placement_of(parameter, rules[0]) == placement_of(parameter, rules[1]), parameter
    assert made == expected


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_plans_pass_the_check(golden, name):
    check_plan(golden(name))


def spoil_mesh(document):
    document["mesh"]["data"] = 4


def spoil_numbering(document):
    ranks = document["ranks"]
    ranks[0]["coordinates"], ranks[1]["coordinates"] = ranks[1]["coordinates"], ranks[0]["coordinates"]


def spoil_group(document):
    document["ranks"][3]["groups"]["data"] = [2, 3]


def spoil_slice(document):
    document["ranks"][1]["slices"]["embedding.weight"] = [[0, 32], [0, 16]]


def spoil_stage(document):
    del document["ranks"][0]["slices"]["blocks.1.mlp.up.weight"]


def spoil_pattern(document):
    document["parameters"] = [rule for rule in document["parameters"] if rule["pattern"] != "norm.weight"]


def spoil_version(document):
    document["version"] = 2


def spoil_key(document):
    document["more"] = 1


@pytest.mark.parametrize(
    "spoil",
    [spoil_mesh, spoil_numbering, spoil_group, spoil_slice, spoil_stage, spoil_pattern, spoil_version, spoil_key],
)
def test_spoiled_plan_is_refused(golden, spoil):
    document = golden("plan-data-2-tensor-2-pipeline-2")
    spoil(document)

    with pytest.raises(PlanError):
        check_plan(document)


def test_all_violations_stand_in_one_message_with_the_nearest_valid_meshes(model, parameters):
    with pytest.raises(PlanError) as caught:
        plan(ParallelConfig(data=2, tensor=4, pipeline=3), parameters, model, 8)

    message = str(caught.value)
    assert "mesh data 2 x tensor 4 x pipeline 3 is 24 ranks, but the world has 8" in message
    assert "num_attention_heads 6 is not divisible by tensor 4" in message
    assert "num_key_value_heads 2 is not divisible by tensor 4" in message
    assert "vocab_size 65 is not divisible by tensor 4" in message
    assert "embedding.weight: axis 0 of 65 is not divisible by tensor 4" in message
    assert "nearest valid meshes for 8 ranks: data 2 x pipeline 4; data 4 x pipeline 2" in message


def test_every_mesh_that_the_message_proposes_is_valid(model, parameters):
    model["vocab_size"] = 66
    for name in ("embedding.weight", "lm_head.weight"):
        parameters[name] = [66, 12]

    with pytest.raises(PlanError) as caught:
        plan(ParallelConfig(data=2, tensor=3), parameters, model, 8)

    proposals = str(caught.value).rpartition("ranks: ")[2].split("; ")
    assert len(proposals) == 3
    for proposal in proposals:
        sizes = {axis: int(size) for axis, size in re.findall(r"(\w+) (\d+)", proposal)}
        assert plan(ParallelConfig(**sizes), parameters, model, 8)["mesh"].items() >= sizes.items()
    assert "data 4 x tensor 2" in proposals


def test_blocks_that_do_not_divide_evenly_go_to_the_first_stages(model, parameters):
    made = plan(ParallelConfig(pipeline=4), parameters, model, 4)

    counts = [
        len({name.split(".")[1] for name in rank["slices"] if name.startswith("blocks.")}) for rank in made["ranks"]
    ]
    assert counts == [3, 3, 2, 2]


def test_more_stages_than_blocks_are_refused(model, parameters):
    with pytest.raises(PlanError, match="10 blocks cannot fill pipeline 16"):
        plan(ParallelConfig(pipeline=16), parameters, model, 16)


def test_parameter_that_no_pattern_covers_is_never_silently_replicated(model, parameters):
    parameters["blocks.0.adapter.weight"] = [4, 4]

    with pytest.raises(PlanError, match=r"blocks\.0\.adapter\.weight: no pattern covers it"):
        plan(ParallelConfig(), parameters, model, 1)


def test_config_that_disagrees_with_the_parameters_is_refused(model, parameters):
    model["num_hidden_layers"] = 12

    with pytest.raises(PlanError, match="num_hidden_layers 12, but the parameters have 10 blocks"):
        plan(ParallelConfig(), parameters, model, 1)


def test_slices_of_all_ranks_tile_every_parameter(model, parameters):
    model["vocab_size"] = 66
    for name in ("embedding.weight", "lm_head.weight"):
        parameters[name] = [66, 12]
    made = plan(ParallelConfig(tensor=2, pipeline=2), parameters, model, 8)

    for name, shape in parameters.items():
        for replica in range(2):
            owners = [r for r in made["ranks"] if r["coordinates"]["data"] == replica and name in r["slices"]]
            blocks = {tuple(map(tuple, rank["slices"][name])) for rank in owners}
            covered = sum((rows[1] - rows[0]) * (rest[0][1] - rest[0][0] if rest else 1) for rows, *rest in blocks)
            assert covered == shape[0] * (shape[1] if len(shape) > 1 else 1), name


def test_check_does_not_change_the_document(golden):
    document = golden("plan-data-2")
    before = copy.deepcopy(document)

    check_plan(document)

    assert document == before
