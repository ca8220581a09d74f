"""The one place that chooses kernels: the same cells for every device, each written for its device.

`select()` returns a module. All of them hold the same cells, which are the arithmetic of the model without its
parameters: the plain formulation (any device; the meaning of all others), the tuned one for CPU, and the fused
operators of Ascend. The model's own cells never ask which one it is.
"""

from types import ModuleType

import mindspore
from mindspore import nn

from ms_gptmodel import kernels_ascend, kernels_cpu, kernels_plain
from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError

_BY_NAME = {"plain": kernels_plain, "CPU": kernels_cpu, "Ascend": kernels_ascend}


def select(name: str | None = None) -> ModuleType:
    """The kernels called `name` (`plain`, `CPU`, `Ascend`), by default those of MindSpore's device target.

    A device without kernels of its own gets the plain ones. Raises ConfigError for an unknown name.
    """
    if name is None:
        return _BY_NAME.get(mindspore.get_context("device_target"), kernels_plain)
    if name not in _BY_NAME:
        raise ConfigError(f"kernels {name!r}: unknown; known: {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def document_ends(config: ModelConfig) -> nn.Cell | None:
    """The cell that tells attention where documents end, for kernels that take that in place of a mask; else None."""
    cell = getattr(select(), "DocumentEnds", None)
    plain = config.attn_logit_softcapping is not None or config.attention_dropout > 0 or config.position_kind == "alibi"
    return None if cell is None or plain or not config.is_causal else cell(config.head_dim)
