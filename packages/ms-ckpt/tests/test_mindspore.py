import numpy as np
import pytest
from ms_ckpt import CheckpointStore, MismatchError, RawTensor
from ms_ckpt.mindspore import restore, snapshot


@pytest.fixture(scope="module")
def mindspore():
    import mindspore

    return mindspore


@pytest.fixture
def parameters(mindspore):
    from mindspore.common.np_dtype import bfloat16

    words = np.array([0x3FC0, 0x8000, 0x7F80, 0x7FA1, 1], np.uint16)
    return {
        "w": mindspore.Parameter(mindspore.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)), name="inner.w"),
        "h": mindspore.Parameter(mindspore.Tensor(np.array([1.5, -0.0], np.float16)), name="h"),
        "b": mindspore.Parameter(mindspore.Tensor(words.view(bfloat16)), name="b"),
        "step": mindspore.Parameter(mindspore.Tensor(np.array(3, np.int32)), name="step"),
    }


def test_snapshot_does_not_follow_later_steps(mindspore, parameters):
    taken = snapshot(parameters)
    live = parameters["w"].asnumpy()
    mindspore.ops.assign_add(parameters["w"], mindspore.Tensor(np.ones((2, 3), np.float32)))

    assert parameters["w"].asnumpy()[0, 0] == 1  # waits for the operator
    assert live[0, 0] == 1  # the view that a snapshot must not be
    assert taken["w"][0, 0] == 0


def test_parameters_survive_disk_to_the_last_bit(mindspore, parameters, tmp_path, words_of):
    taken = snapshot(parameters)
    CheckpointStore(tmp_path).save(1, taken, {})
    for name in ("w", "h", "step"):
        parameters[name].set_data(mindspore.ops.zeros_like(parameters[name]))

    loaded = CheckpointStore(tmp_path).load().tensors
    restore(parameters, loaded)
    for tensor in loaded.values():  # what was restored is not the loaded memory
        (tensor.words if isinstance(tensor, RawTensor) else tensor)[...] = 0

    again = snapshot(parameters)
    assert {name: words_of(tensor) for name, tensor in again.items()} == {
        name: words_of(tensor) for name, tensor in taken.items()
    }
    assert isinstance(taken["b"], RawTensor)


def test_nothing_is_set_when_anything_differs(parameters):
    tensors = snapshot(parameters)
    tensors["w"] = np.zeros((3, 2), np.float32)
    tensors["h"] = tensors["h"].astype(np.float32)
    tensors["x"] = tensors.pop("b")
    tensors["step"] = np.array(9, np.int32)

    with pytest.raises(MismatchError) as caught:
        restore(parameters, tensors)

    assert str(caught.value).splitlines() == [
        "4 differences from the parameters:",
        "  b: missing",
        "  h: F32 [2], expected F16 [2]",
        "  w: F32 [3, 2], expected F32 [2, 3]",
        "  x: unexpected",
    ]
    assert parameters["step"].asnumpy() == 3
