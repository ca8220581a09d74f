"""The families: what each one's config.json of Hugging Face means in the keys of contract `model`."""

from collections.abc import Callable

from ms_gptmodel import families_experts, families_gpt, families_llama
from ms_gptmodel.huggingface import HuggingFaceValues, Keys

FAMILIES: dict[str, Callable[[HuggingFaceValues], Keys]] = {
    "bert": families_gpt.bert,
    "bloom": families_gpt.bloom,
    "deepseek": families_experts.deepseek,
    "falcon": families_gpt.falcon,
    "gemma": families_llama.gemma,
    "gemma2": families_llama.gemma2,
    "gemma3_text": families_llama.gemma3,
    "gpt2": families_gpt.gpt2,
    "gpt_neox": families_gpt.gpt_neox,
    "gptj": families_gpt.gptj,
    "llama": families_llama.llama,
    "mistral": families_llama.mistral,
    "mixtral": families_experts.mixtral,
    "opt": families_gpt.opt,
    "phi": families_gpt.phi,
    "qwen2": families_llama.qwen2,
    "qwen2_moe": families_experts.qwen2_moe,
    "qwen3": families_llama.qwen3,
    "qwen3_moe": families_experts.qwen3_moe,
}
"""By model_type. Each takes what it knows from a config.json; who calls it refuses the rest."""
