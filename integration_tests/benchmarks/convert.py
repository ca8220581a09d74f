"""Conversion of 1 GB of float32 weights, durable and read back, beside a durable copy of the file and beside torch.

Ratios of seconds, but for `convert_rss_mb`: resident memory that the conversion adds at its peak, in MiB. The copy is
`shutil.copyfile` with fsync. The torch route is torch.load, renaming, mindspore.save_checkpoint, and the fsync without
which a crash may lose the file; `unflushed` is without that, as MindSpore leaves it. It verifies nothing. Sources are
in the page cache.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

FIGURES = {
    "convert_vs_file_copy": ("copy", "convert"),
    "convert_transposed_vs_file_copy": ("copy", "convert_transposed"),
    "convert_vs_torch_route": ("torch_route", "convert_bin"),
    "convert_vs_torch_route_unflushed": ("torch_route_unflushed", "convert_bin"),
    "convert_rss_mb": "rss",
    "bin_read_vs_torch_load": ("torch_load", "bin_read"),
}
UNIT = "s (or MiB)"
REPEATS = 3  # inside a process; the median counts
HIDDEN, LAYERS, VOCAB = 1024, 20, 8192
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS, "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2736,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 1e4,
    "tie_word_embeddings": True,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": VOCAB, "n_embd": HIDDEN,
    "n_layer": LAYERS, "n_head": 16, "n_positions": 1024,
}  # fmt: skip


def measure(contender: str) -> float:
    """Returns seconds (or MiB) of one contender, after a call that warms page cache and allocator."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".benchmark-") as folder:
        return float(globals()[f"_{contender}"](Path(folder)))


def _shapes(config: dict) -> dict[str, tuple[int, ...]]:
    """Names and shapes in Hugging Face's layout."""
    if config is GPT2:
        shapes: dict[str, tuple[int, ...]] = {
            "transformer.wte.weight": (VOCAB, HIDDEN),
            "transformer.wpe.weight": (1024, HIDDEN),
        }
        for layer in range(LAYERS):
            block = f"transformer.h.{layer}."
            for name, size in {
                "attn.c_attn": (HIDDEN, 3 * HIDDEN), "attn.c_proj": (HIDDEN, HIDDEN),
                "mlp.c_fc": (HIDDEN, 4 * HIDDEN), "mlp.c_proj": (4 * HIDDEN, HIDDEN),
            }.items():  # fmt: skip
                shapes |= {f"{block}{name}.weight": size, f"{block}{name}.bias": size[1:]}
            for name in ("ln_1", "ln_2"):
                shapes |= {f"{block}{name}.weight": (HIDDEN,), f"{block}{name}.bias": (HIDDEN,)}
        return shapes | {"transformer.ln_f.weight": (HIDDEN,), "transformer.ln_f.bias": (HIDDEN,)}
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    inner = LLAMA["intermediate_size"]
    for layer in range(LAYERS):
        block = f"model.layers.{layer}."
        shapes |= {f"{block}self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{block}mlp.{part}_proj.weight": (inner, HIDDEN) for part in ("gate", "up")}
        shapes |= {f"{block}mlp.down_proj.weight": (HIDDEN, inner)}
        shapes |= {f"{block}{name}.weight": (HIDDEN,) for name in ("input_layernorm", "post_attention_layernorm")}
    return shapes


def _source(folder: Path, config: dict, kind: str = "safetensors") -> Path:
    source = folder / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(0)
    pool = rng.standard_normal(1 << 23, np.float32)
    arrays = {name: np.resize(pool[rng.integers(1 << 20) :], shape) for name, shape in _shapes(config).items()}
    if kind == "bin":
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, source / "pytorch_model.bin")
    else:
        from safetensors.numpy import save_file

        save_file(arrays, source / "model.safetensors", {"format": "pt"})
    os.sync()
    return source


def _seconds(action: Callable[[Path], object], folder: Path) -> float:
    """The median over REPEATS of an action that writes into a fresh folder, after one call that warms up."""
    times = []
    for number in range(REPEATS + 1):
        target = folder / f"target-{number}"
        start = time.perf_counter()
        action(target)
        times.append(time.perf_counter() - start)
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
    return sorted(times[1:])[REPEATS // 2]


def _converts(source: Path) -> Callable[[Path], object]:
    from ms_weightconv import convert

    return lambda target: convert(source, target, to="mindspore", progress=False)


def _convert(folder: Path) -> float:
    return _seconds(_converts(_source(folder, LLAMA)), folder)


def _convert_transposed(folder: Path) -> float:
    return _seconds(_converts(_source(folder, GPT2)), folder)


def _convert_bin(folder: Path) -> float:
    return _seconds(_converts(_source(folder, LLAMA, "bin")), folder)


def _copy(folder: Path) -> float:
    source = _source(folder, LLAMA) / "model.safetensors"

    def copy(target: Path) -> None:
        target.mkdir()
        shutil.copyfile(source, target / source.name)
        _flush(target / source.name)

    return _seconds(copy, folder)


def _flush(file: Path) -> None:
    for path in (file, file.parent):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _torch_route(folder: Path, *, is_flushed: bool = True) -> float:
    import mindspore
    import torch

    source = _source(folder, LLAMA, "bin") / "pytorch_model.bin"

    def route(target: Path) -> None:
        target.mkdir()
        state = torch.load(source, weights_only=True)
        renamed = [
            {"name": name.replace("model.layers.", "blocks."), "data": mindspore.Tensor(value.numpy())}
            for name, value in state.items()
        ]
        mindspore.save_checkpoint(renamed, str(target / "model.ckpt"))
        if is_flushed:
            _flush(target / "model.ckpt")

    return _seconds(route, folder)


def _torch_route_unflushed(folder: Path) -> float:
    return _torch_route(folder, is_flushed=False)


def _torch_load(folder: Path) -> float:
    import torch

    source = _source(folder, LLAMA, "bin") / "pytorch_model.bin"

    def load(target: Path) -> None:
        for value in torch.load(source, weights_only=True).values():
            value.numpy().view(np.uint32).max()

    return _seconds(load, folder)


def _bin_read(folder: Path) -> float:
    from ms_weightconv.torchfile import read_torch_file

    source = _source(folder, LLAMA, "bin") / "pytorch_model.bin"

    def read(target: Path) -> None:
        for tensor in read_torch_file(source).values():
            tensor.read().max()

    return _seconds(read, folder)


def _rss(folder: Path) -> float:
    """The peak in a child, which begins with nothing of what this process has made."""
    command = [sys.executable, __file__, str(_source(folder, GPT2)), str(folder / "target")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout)


def _peak() -> float:
    """MiB; not ru_maxrss, which begins with the peak of the parent."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


if __name__ == "__main__":
    action, before = _converts(Path(sys.argv[1])), _peak()
    action(Path(sys.argv[2]))
    print(_peak() - before)
