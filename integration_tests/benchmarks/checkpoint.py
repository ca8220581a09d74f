"""Saving and loading 0.4 GB of float32 tensors on the same disk, durable and verified where the product is."""

import tempfile
import time
from pathlib import Path

import numpy as np

FIGURES = {
    "save_vs_mindspore_ckpt": ("save", "mindspore_save"),
    "save_vs_torch": ("save", "torch_save"),
    "load_vs_mindspore_ckpt": ("load", "mindspore_load"),
}
UNIT = "GB/s"
TENSORS, ELEMENTS = 24, 1 << 22


def measure(contender: str) -> float:
    """Returns GB/s of the second of two calls (the first warms the page cache and the allocator)."""
    rng = np.random.default_rng(0)
    tensors = {
        f"model.layer{i}.weight": rng.standard_normal((ELEMENTS // 1024, 1024), np.float32) for i in range(TENSORS)
    }
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        action = _action(contender, Path(folder), tensors)
        action()
        start = time.perf_counter()
        action()
        return sum(t.nbytes for t in tensors.values()) / 1e9 / (time.perf_counter() - start)


def _action(contender: str, folder: Path, tensors: dict):
    if contender in ("save", "load"):
        from ms_ckpt import CheckpointStore

        store, steps = CheckpointStore(folder), iter(range(1, 100))
        if contender == "save":
            return lambda: store.save(next(steps), tensors, {})
        store.save(1, tensors, {})
        return store.load
    if contender == "torch_save":
        import torch

        state = {name: torch.from_numpy(tensor) for name, tensor in tensors.items()}
        return lambda: torch.save(state, folder / "model.pt")
    import mindspore as ms

    parameters = [{"name": name, "data": ms.Tensor(tensor)} for name, tensor in tensors.items()]
    path = str(folder / "model.ckpt")
    if contender == "mindspore_save":
        return lambda: ms.save_checkpoint(parameters, path)
    ms.save_checkpoint(parameters, path)
    return lambda: ms.load_checkpoint(path)
