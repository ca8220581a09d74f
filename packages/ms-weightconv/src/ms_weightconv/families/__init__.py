"""The families: one table each, for the weights and for the config."""

from typing import Any

from ms_weightconv.errors import ConfigError
from ms_weightconv.families.bert import BERT
from ms_weightconv.families.bloom import BLOOM
from ms_weightconv.families.falcon import FALCON
from ms_weightconv.families.gemma import GEMMA, GEMMA2, GEMMA3
from ms_weightconv.families.gpt2 import GPT2
from ms_weightconv.families.gpt_neox import GPT_NEOX
from ms_weightconv.families.gptj import GPTJ
from ms_weightconv.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from ms_weightconv.families.mixture import MIXTRAL, QWEN2_MOE, QWEN3_MOE
from ms_weightconv.families.opt import OPT
from ms_weightconv.families.phi import PHI, PHI3
from ms_weightconv.family import Family

__all__ = ["FAMILIES", "find_family"]

FAMILIES = {
    family.name: family
    for family in (
        GPT2, GPT_NEOX, GPTJ, OPT, BLOOM, FALCON, PHI, PHI3, LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA, GEMMA2, GEMMA3,
        MIXTRAL, QWEN2_MOE, QWEN3_MOE, BERT,
    )
}  # fmt: skip


def find_family(model_type: Any, asked: str | Family | None, what: str) -> Family:
    """The family of a Hugging Face `model_type`, or the one asked for; a user's own table is taken as it is.

    Raises:
        ConfigError: unknown, or the two are different known families.
    """
    if isinstance(asked, Family):
        return asked
    name = model_type if asked is None else asked
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(
            f"{what}: family {name!r:.100} is not known; known: {', '.join(FAMILIES)}; a table of your own can be "
            "given (--table), and one can be proposed (--infer)"
        )
    if asked is not None and isinstance(model_type, str) and model_type in FAMILIES and model_type != asked:
        raise ConfigError(f"{what}: model_type is {model_type!r}, but family {asked!r} was asked for")
    return FAMILIES[name]
