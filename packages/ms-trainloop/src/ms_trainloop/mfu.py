"""Model FLOPs utilization: (tokens per second) * (FLOPs a token) / (ranks * peak of one device).

Tokens are the labels trained on, so padding counts as waste. FLOPs a token are given by the caller, who knows the
model; PaLM's (Chowdhery et al. 2022, appendix B) are 6 N + 12 L H T: N weights a token is multiplied with, L layers,
H = heads * head_dim, T tokens of a row; recomputation does not count. Without a known peak there is no MFU.
"""

from collections.abc import Callable

import mindspore

from ms_trainloop.config import TrainConfig

PEAKS = {
    "Ascend910A": (256.0, "Liao et al., DaVinci, Hot Chips 31, 2019: 256 TFLOPS in float16"),
}
"""TFLOPS in half precision by MindSpore's name of the device, and their source.

Others, the 910B among them, for which no sheet of Huawei's was found, need `train.peak_tflops`.
"""


def known_peak(config: TrainConfig, device_name: str) -> tuple[float, str] | None:
    """Returns TFLOPS of one device and where the number is from, or None if it is not known."""
    if config.peak_tflops > 0:
        return config.peak_tflops, "train.peak_tflops"
    return PEAKS.get(device_name) if config.precision != "float32" else None


def utilization(
    config: TrainConfig, flops_per_token: float | None, world_size: int, say: Callable[[str], None]
) -> Callable[[float], float | None]:
    """Returns what turns tokens per second into the utilization, or into None; says formula and peak once."""
    peak = known_peak(config, _device_name())
    if peak is None or flops_per_token is None:
        return lambda _: None
    total = peak[0] * 1e12 * world_size
    say(
        f"mfu = tokens per second * {flops_per_token:.4g} FLOPs a token / ({world_size} ranks *"
        f" {peak[0]:g} TFLOPS); peak: {peak[1]}"
    )
    return lambda tokens_per_second: tokens_per_second * flops_per_token / total


def _device_name() -> str:
    if mindspore.get_context("device_target") != "Ascend":
        return "CPU"
    return str(mindspore.hal.get_device_name())
