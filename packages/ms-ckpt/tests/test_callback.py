"""A stock `Model.train`, interrupted anywhere and resumed in fresh objects, ends where it would have ended."""

import random

import numpy as np
import pytest
from ms_ckpt import CheckpointConfig, CheckpointStore, CkptError, InvalidCheckpointError, MismatchError, SaveError

mindspore = pytest.importorskip("mindspore")
from mindspore import nn  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402
from ms_ckpt.callback import CheckpointCallback, name_parameters, random_state, restore_random_state  # noqa: E402

EPOCHS, STEPS_PER_EPOCH = 3, 4


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(3, 5)
        self.second = nn.Dense(5, 1)

    def construct(self, x):
        return self.second(mindspore.ops.relu(self.first(x)))


class StopAfter(Callback):
    def __init__(self, steps):
        super().__init__()
        self._steps = steps
        self.seen = []

    def on_train_step_end(self, run_context):
        context = run_context.original_args()
        self.seen.append(float(context.train_dataset_element[0].asnumpy().sum()))
        if context.cur_step_num == self._steps:
            run_context.request_stop()


class FailAfter(StopAfter):
    def on_train_step_end(self, run_context):
        if run_context.original_args().cur_step_num == self._steps:
            raise KeyboardInterrupt


def dataset(batch_size=2):
    mindspore.dataset.config.set_seed(5)
    x = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    data = mindspore.dataset.NumpySlicesDataset((x, x.sum(1, keepdims=True)), shuffle=True)
    return data.batch(batch_size)


def build(optimizer=nn.Adam):
    """Network and model with equal weights each time; the rate falls with the optimizer's own step counter."""
    network = Network()
    generator = np.random.default_rng(2)
    for parameter in network.trainable_params():
        parameter.set_data(mindspore.Tensor(generator.normal(size=parameter.shape).astype(np.float32)))
    rate = nn.CosineDecayLR(1e-4, 1e-2, EPOCHS * STEPS_PER_EPOCH)
    return network, Model(network, nn.MSELoss(), optimizer(network.trainable_params(), rate))


def words(model):
    return {name: parameter.asnumpy().tobytes() for name, parameter in name_parameters(model.train_network).items()}


@pytest.fixture(scope="module")
def straight():
    """A run that nothing interrupts: its data and all its parameters at the end."""
    recorder = StopAfter(0)
    _, model = build()
    model.train(EPOCHS, dataset(), callbacks=[recorder], dataset_sink_mode=False)
    return recorder.seen, words(model)


@pytest.mark.parametrize("stop", [1, 4, 6, 11])
def test_resumed_run_sees_the_remaining_batches_and_ends_equal_to_the_last_bit(tmp_path, straight, stop):
    store = CheckpointStore(tmp_path)
    stopper = StopAfter(stop)
    model = build()[1]
    model.train(EPOCHS, dataset(), callbacks=[stopper, CheckpointCallback(store)], dataset_sink_mode=False)
    assert store.steps() == [stop]

    model, data, resumed = build()[1], dataset(), StopAfter(0)
    checkpoints = CheckpointCallback(store)
    initial_epoch = checkpoints.restore(model, data)
    assert initial_epoch == stop // STEPS_PER_EPOCH
    model.train(EPOCHS, data, callbacks=[resumed, checkpoints], dataset_sink_mode=False, initial_epoch=initial_epoch)

    seen, parameters = straight
    assert stopper.seen + resumed.seen == seen
    assert words(model) == parameters
    assert store.load().step == EPOCHS * STEPS_PER_EPOCH


def test_resumed_run_in_graph_mode_ends_equal_to_the_last_bit(tmp_path):
    store = CheckpointStore(tmp_path)
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        straight = build()[1]
        straight.train(EPOCHS, dataset(), dataset_sink_mode=False)
        build()[1].train(EPOCHS, dataset(), [StopAfter(6), CheckpointCallback(store)], dataset_sink_mode=False)
        model, data, checkpoints = build()[1], dataset(), CheckpointCallback(store)
        first = checkpoints.restore(model, data)
        model.train(EPOCHS, data, [checkpoints], dataset_sink_mode=False, initial_epoch=first)
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)

    assert words(model) == words(straight)


def test_weights_alone_would_not_be_enough(tmp_path, straight):
    """What the other saved things are for: the same run without optimizer state ends elsewhere."""
    store = CheckpointStore(tmp_path)
    model = build()[1]
    model.train(EPOCHS, dataset(), callbacks=[StopAfter(6), CheckpointCallback(store)], dataset_sink_mode=False)

    model, data = build()[1], dataset()
    weights = {
        name: parameter for name, parameter in name_parameters(model.train_network).items() if "optimizer" not in name
    }
    for name, parameter in weights.items():
        parameter.copy_(mindspore.Tensor(store.load().tensors[name]))
    data.set_init_step(6)
    model.train(EPOCHS, data, dataset_sink_mode=False, initial_epoch=1)

    assert words(model) != straight[1]


def test_everything_has_a_name_by_identity_and_none_a_wrapper_prefix():
    network, model = build()

    named = name_parameters(model.train_network)

    weights = {name: parameter for name, parameter in named.items() if name.startswith("model.")}
    assert sorted(weights) == ["model.first.bias", "model.first.weight", "model.second.bias", "model.second.weight"]
    assert weights["model.first.weight"] is network.first.weight
    for slot in ("moment1", "moment2"):
        assert named[f"optimizer.{slot}.first.weight"].shape == (5, 3)
    assert {"optimizer.global_step", "optimizer.beta1_power"} <= named.keys()
    assert {id(parameter) for _, parameter in model.train_network.parameters_and_names()} <= {
        id(p) for p in named.values()
    }


def test_names_do_not_change_when_the_network_is_wrapped():
    network = Network()

    class Wrapper(nn.Cell):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def construct(self, x):
            return self.inner(x)

    cell = nn.TrainOneStepCell(
        nn.WithLossCell(Wrapper(network), nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9)
    )

    named = name_parameters(cell, network)

    assert named["model.first.weight"] is network.first.weight
    assert "optimizer.moments.first.weight" in named
    assert not [name for name in named if "inner" in name]


@pytest.mark.parametrize("optimizer", [nn.SGD, nn.Momentum, nn.AdamWeightDecay, nn.Lamb])
def test_state_of_other_optimizers_is_found_too(tmp_path, optimizer):
    network = Network()
    arguments = {"momentum": 0.9} if optimizer in (nn.SGD, nn.Momentum) else {}
    rate = 0.1 if optimizer is not nn.Momentum else 0.2
    model = Model(network, nn.MSELoss(), optimizer(network.trainable_params(), learning_rate=rate, **arguments))

    named = name_parameters(model.train_network)

    slots = [name for name in named if name.startswith("optimizer.") and name.endswith(".first.weight")]
    assert slots
    assert not [name for name in named if name.startswith("training.")]


def test_saves_when_steps_are_due_and_at_the_end(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    checkpoints = CheckpointCallback(store, every_steps=5, values=lambda: {"config": {"rate": 1e-2}})

    build()[1].train(EPOCHS, dataset(), callbacks=[checkpoints], dataset_sink_mode=False)

    assert store.steps() == [5, 10, 12]
    values = store.load(10).values
    assert {key: values[key] for key in ("epoch", "steps_per_epoch", "samples_consumed", "loss_scale", "config")} == {
        "epoch": 2, "steps_per_epoch": 4, "samples_consumed": 20, "loss_scale": 1.0, "config": {"rate": 1e-2}
    }  # fmt: skip


def test_saves_when_seconds_are_over(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))

    build()[1].train(1, dataset(), callbacks=[CheckpointCallback(store, every_seconds=1e-6)], dataset_sink_mode=False)

    assert store.steps() == [1, 2, 3, 4]


def test_second_call_of_train_goes_on_counting(tmp_path):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    model, checkpoints = build()[1], CheckpointCallback(store)
    for _ in range(2):
        model.train(1, dataset(), callbacks=[checkpoints], dataset_sink_mode=False)

    assert store.steps() == [4, 8]


def test_run_that_did_not_restore_never_writes_over_another(tmp_path):
    store = CheckpointStore(tmp_path)
    store.save(3, {}, {})

    with pytest.raises(CkptError, match=r"call restore\(model, dataset\) before"):
        build()[1].train(1, dataset(), callbacks=[CheckpointCallback(store)], dataset_sink_mode=False)


def test_nothing_to_restore_is_epoch_0_and_changes_nothing(tmp_path):
    model, data = build()[1], dataset()
    before = words(model)

    assert CheckpointCallback(CheckpointStore(tmp_path)).restore(model, data) == 0
    assert words(model) == before
    assert data.get_init_step() == 0


def test_run_that_an_error_ended_resumes_from_its_last_save(tmp_path, straight):
    store = CheckpointStore(tmp_path)
    checkpoints = CheckpointCallback(store, every_steps=3)
    with pytest.raises(KeyboardInterrupt):
        build()[1].train(EPOCHS, dataset(), callbacks=[checkpoints, FailAfter(8)], dataset_sink_mode=False)
    assert checkpoints.wait().name == "step-00000006"

    model, data, checkpoints = build()[1], dataset(), CheckpointCallback(store, every_steps=3)
    initial_epoch = checkpoints.restore(model, data)
    model.train(EPOCHS, data, callbacks=[checkpoints], dataset_sink_mode=False, initial_epoch=initial_epoch)

    assert words(model) == straight[1]


def test_damaged_newest_falls_back_and_is_saved_anew(tmp_path, straight):
    store = CheckpointStore(tmp_path, CheckpointConfig(keep_last=0))
    checkpoints = CheckpointCallback(store, every_steps=4)
    build()[1].train(EPOCHS, dataset(), callbacks=[checkpoints], dataset_sink_mode=False)
    for step in (8, 12):
        path = tmp_path / f"step-{step:08d}" / "rank-00000.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")

    model, data, checkpoints = build()[1], dataset(), CheckpointCallback(store, every_steps=4)
    assert checkpoints.restore(model, data) == 1
    model.train(EPOCHS, data, callbacks=[checkpoints], dataset_sink_mode=False, initial_epoch=1)

    assert words(model) == straight[1]
    for step in (4, 8, 12):
        store.verify(step)


@pytest.mark.parametrize("damage", ["another batch size", "another optimizer", "not ours", "all damaged"])
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path, damage):
    store = CheckpointStore(tmp_path)
    build()[1].train(1, dataset(), callbacks=[CheckpointCallback(store)], dataset_sink_mode=False)
    if damage == "not ours":
        tensors = store.load().tensors
        store.save(4, tensors, {}, replace=True)
    if damage == "all damaged":
        (tmp_path / "step-00000004" / "COMMIT").unlink()
    model = build(nn.AdamWeightDecay if damage == "another optimizer" else nn.Adam)[1]
    data = dataset(4 if damage == "another batch size" else 2)
    before = words(model)

    with pytest.raises((MismatchError, InvalidCheckpointError)) as caught:
        CheckpointCallback(store).restore(model, data)

    assert {
        "another batch size": "was saved with 4 steps an epoch, the dataset has 2",
        "another optimizer": "optimizer.moment1.first.weight: unexpected",
        "not ours": "its values hold no epoch",
        "all damaged": "none of its checkpoints is valid",
    }[damage] in str(caught.value)
    assert words(model) == before
    assert data.get_init_step() == 0


def test_failed_save_ends_the_training(tmp_path):
    (tmp_path / "root").write_text("in the way")
    checkpoints = CheckpointCallback(CheckpointStore(tmp_path / "root"), every_steps=1)

    with pytest.raises(SaveError):
        build()[1].train(1, dataset(), callbacks=[checkpoints], dataset_sink_mode=False)


def test_random_states_come_back():
    mindspore.set_seed(7)
    random.random(), np.random.normal(size=3)
    state = random_state()
    expected = (random.random(), np.random.normal(size=3).tolist(), mindspore.get_seed())
    mindspore.set_seed(8)

    restore_random_state(state)

    assert (random.random(), np.random.normal(size=3).tolist(), mindspore.get_seed()) == expected
