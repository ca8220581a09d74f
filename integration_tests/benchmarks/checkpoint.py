"""Saving, loading and resharding 0.8 GB of float32 tensors on the same disk, durable and verified where the product is.

Ratios of seconds, but for two: `load_rss_over_params_mb` is bytes over one MiB, `reshard_read_amplification` bytes over
bytes. `raw_fsync` is the fastest durable write of the same bytes that was found: one thread, O_DIRECT, space reserved.
`torch_save` is torch.save and the fsync without which a crash may lose the file; `torch_save_unflushed` leaves the
bytes to the kernel, as torch.save alone does. MindSpore's save_checkpoint flushes nothing either, and is measured so.
"""

import fcntl
import itertools
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FIGURES = {
    "save_vs_raw_fsync": ("save", "raw_fsync"),
    "save_vs_mindspore_ckpt": ("mindspore_save", "save"),
    "save_vs_torch": ("torch_save", "save"),
    "save_vs_torch_unflushed": ("torch_save_unflushed", "save"),
    "async_block_vs_memcpy": ("async_block", "memcpy"),
    "load_verified_vs_memcpy": ("load", "memcpy"),
    "load_vs_mindspore_ckpt": ("mindspore_load", "load"),
    "load_rss_over_params_mb": ("load_extra_bytes", "bytes_of_one_mb"),
    "reshard_read_amplification": ("reshard_bytes_read", "reshard_bytes_wanted"),
}
UNIT = "s (or bytes)"
TENSORS, ROWS, COLUMNS = 24, 8192, 1024  # 0.8 GB
RANKS_SAVING, RANKS_LOADING = 2, 3
REPEATS = 3  # inside a process; the median counts


def measure(contender: str) -> float:
    """Returns seconds (or bytes) of one contender, after a call that warms page cache and allocator."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        return float(globals()[f"_{contender}"](Path(folder)))


def _arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"model.layer{i}.weight": rng.standard_normal((ROWS, COLUMNS), np.float32) for i in range(TENSORS)}


def _seconds(action: Callable[[], object], between: Callable[[], object] = lambda: None) -> float:
    """The median over REPEATS after one call that warms up; `between` is not timed."""
    action()
    times = []
    for _ in range(REPEATS):
        between()
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return sorted(times)[REPEATS // 2]


def _save(folder: Path) -> float:
    from ms_ckpt import CheckpointConfig, CheckpointStore

    store, steps, tensors = CheckpointStore(folder, CheckpointConfig(keep_last=0)), iter(range(1, 100)), _arrays()
    return _seconds(lambda: store.save(next(steps), tensors, {}), lambda: _delete_all_but_newest(store))


def _delete_all_but_newest(store: object) -> None:
    import shutil

    for path in sorted(store.root.glob("step-*"))[:-1]:
        shutil.rmtree(path)


def _raw_fsync(folder: Path) -> float:
    size = TENSORS * ROWS * COLUMNS * 4
    memory = mmap.mmap(-1, size)  # page-aligned, as O_DIRECT demands
    np.frombuffer(memory, np.float32)[:] = np.concatenate([array.ravel() for array in _arrays().values()])
    data, block = memoryview(memory), 4 << 20
    path = folder / "raw"

    def write() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.posix_fallocate(descriptor, 0, size)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        for start in range(0, size, block):
            os.write(descriptor, data[start : start + block])
        os.fsync(descriptor)
        os.close(descriptor)

    return _seconds(write, path.unlink)


def _mindspore_save(folder: Path) -> float:
    import mindspore as ms

    parameters = [{"name": name, "data": ms.Tensor(tensor)} for name, tensor in _arrays().items()]
    path = folder / "model.ckpt"
    return _seconds(lambda: ms.save_checkpoint(parameters, str(path)), path.unlink)


def _torch_save(folder: Path, *, is_flushed: bool = True) -> float:
    import torch

    state = {name: torch.from_numpy(tensor) for name, tensor in _arrays().items()}
    path = folder / "model.pt"

    def save() -> None:
        torch.save(state, path)
        if is_flushed:
            for each in (path, folder):
                descriptor = os.open(each, os.O_RDONLY)
                os.fsync(descriptor)
                os.close(descriptor)

    return _seconds(save, path.unlink)


def _torch_save_unflushed(folder: Path) -> float:
    return _torch_save(folder, is_flushed=False)


def _memcpy(folder: Path) -> float:
    sources, targets = _arrays(), _arrays(1)
    return _seconds(lambda: [np.copyto(targets[name], sources[name]) for name in sources])


def _async_block(folder: Path) -> float:
    from ms_ckpt import AsyncSaver, CheckpointConfig, CheckpointStore

    tensors, steps = _arrays(), iter(range(1, 100))
    with AsyncSaver(CheckpointStore(folder, CheckpointConfig(keep_last=1))) as saver:
        return _seconds(lambda: saver.save(next(steps), tensors, {}), saver.wait)


def _parameters() -> dict:
    import mindspore as ms

    return {name: ms.Parameter(ms.Tensor(tensor), name=name) for name, tensor in _arrays(1).items()}


def _saved(folder: Path, ranks: int = 1) -> object:
    """A store with one checkpoint of `ranks` files, rows of every tensor dealt to them."""
    from ms_ckpt import Block, CheckpointStore

    store, shape, height = CheckpointStore(folder), (ROWS, COLUMNS), ROWS // ranks
    store.save_ranks(
        1,
        [
            {
                name: [Block(data=array[at : at + height], offset=(at, 0), shape=shape)]
                for name, array in _arrays().items()
            }
            for at in range(0, ROWS, height)
        ],
        {},
    )
    return store


def _load(folder: Path) -> float:
    from ms_ckpt.mindspore import load_into_parameters

    store, parameters = _saved(folder), _parameters()
    return _seconds(lambda: load_into_parameters(store, parameters))


def _mindspore_load(folder: Path) -> float:
    import mindspore as ms

    path = str(folder / "model.ckpt")
    ms.save_checkpoint([{"name": name, "data": ms.Tensor(tensor)} for name, tensor in _arrays().items()], path)
    net = ms.nn.Cell()
    for name, parameter in _parameters().items():
        net.insert_param_to_cell(name, parameter, check_name_contain_dot=False)
    return _seconds(lambda: ms.load_param_into_net(net, ms.load_checkpoint(path)))


def _load_extra_bytes(folder: Path) -> float:
    """The peak of resident memory during a load, above what stood before it (parameters included)."""
    from ms_ckpt.mindspore import load_into_parameters

    pid = os.fork()  # the arrays that are saved must not count
    if pid == 0:
        _saved(folder)
        os._exit(0)
    os.waitpid(pid, 0)
    store, parameters = __import__("ms_ckpt").CheckpointStore(folder), _parameters()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew here
    before = _status_bytes("VmRSS")
    load_into_parameters(store, parameters)
    return _status_bytes("VmHWM") - before


def _status_bytes(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) * 1024


def _bytes_of_one_mb(folder: Path) -> float:
    return 1 << 20


def _reshard_bytes_read(folder: Path) -> float:
    """What all loading ranks together ask of the kernel for uneven rows of tensors that other ranks wrote."""
    store = _saved(folder, RANKS_SAVING)
    bounds = [ROWS * rank // RANKS_LOADING for rank in range(RANKS_LOADING + 1)]
    before = _read_bytes()
    for low, high in itertools.pairwise(bounds):
        with store.open(1) as opened:
            opened.read_all({name: (slice(low, high), slice(None)) for name in opened.index.tensors})
    return _read_bytes() - before


def _read_bytes() -> int:
    """Bytes that this process has read from files, counted by the kernel."""
    line = Path("/proc/self/io").read_text().splitlines()[0]
    return int(line.removeprefix("rchar: "))


def _reshard_bytes_wanted(folder: Path) -> float:
    return TENSORS * ROWS * COLUMNS * 4
