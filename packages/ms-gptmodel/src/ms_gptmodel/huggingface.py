"""Reading of Hugging Face's config.json: every key is understood, known to change nothing, or refused by name."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.errors import ConfigError

# Keys that say nothing about the numbers a model computes: bookkeeping, run time, generation, other heads.
_IGNORED = frozenset((
    "architectures", "auto_map", "_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype",
    "use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_router_logits", "torchscript",
    "_attn_implementation", "attn_implementation", "_attn_implementation_autoset", "_commit_hash",
    "is_encoder_decoder", "chunk_size_feed_forward", "use_return_dict", "prefix", "task_specific_params",
    "problem_type", "id2label", "label2id", "num_labels", "finetuning_task", "classifier_dropout",
    "gradient_checkpointing", "summary_type", "summary_use_proj", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "tokenizer_class", "sep_token_id", "decoder_start_token_id", "unk_token_id",
    "mask_token_id", "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "max_length",
    "min_length", "no_repeat_ngram_size", "bad_words_ids", "num_beams", "early_stopping", "pretraining_tp",
    "slow_but_exact", "reorder_and_upcast_attn", "n_ctx", "max_window_layers", "cache_implementation",
    "_flash_attn_2_enabled", "attention_softmax_in_fp32", "masked_softmax_fusion", "skip_bias_add",
    "skip_bias_add_qkv", "offset_alibi", "unk_index", "rotary", "is_decoder", "layerdrop", "tp_plan",
    "is_llama_config", "rope_ratio",
))  # fmt: skip
_ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_new", "gelu_pytorch_tanh": "gelu_new",
    "gelu_fast": "gelu_new", "relu": "relu",
}  # fmt: skip
_REQUIRED = object()

Keys = dict[str, Any]
"""Keys of contract `model`, some or all."""


class HuggingFaceValues:
    """The keys of a config.json, each to be taken once; what is left over is refused.

    Args:
        values: the parsed file.
        where: begins every message.
    """

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values, self._where = dict(values), where

    def take(self, *names: str, default: Any = _REQUIRED) -> Any:
        """The value of the first of `names` that is there (older names last); `default` where none is, or it is null.

        Raises ConfigError when there is neither a value nor a default.
        """
        found = [self._values.pop(name, None) for name in names]
        for value in found:
            if value is not None:
                return value
        if default is _REQUIRED:
            raise ConfigError(f"{self._where}.{names[0]}: missing")
        return default

    def take_or_null(self, name: str, *, absent: Any) -> Any:
        """The value of `name`, null too; `absent` where the file does not have it."""
        return self._values.pop(name, absent)

    def put(self, name: str, value: Any) -> None:
        """Sets a value for a later `take`, in place of one that has another shape in this family."""
        self._values[name] = value

    def only(self, name: str, allowed: tuple[Any, ...], meaning: str) -> None:
        """Refuses a value that means a model which contract `model` has no key for; the first one is the default."""
        value = self._values.pop(name, allowed[0])
        if value not in allowed:
            raise ConfigError(f"{self._where}.{name}: found {value!r}: {meaning}; that is not supported")

    def activation(self, *names: str, default: str) -> str:
        """The activation in the contract's spelling."""
        name = self.take(*names, default=default)
        if name not in _ACTIVATIONS:
            raise ConfigError(f"{self._where}.{names[-1]}: expected one of {', '.join(_ACTIVATIONS)}, found {name!r}")
        return _ACTIVATIONS[name]

    def sizes(self) -> Keys:
        """What nearly every family has, under the names that most of them use."""
        names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
        keys = {name: self.take(name) for name in names}
        return keys | {"initializer_range": self.take("initializer_range", default=0.02)}

    def token_ids(self, vocab_size: int) -> dict[str, Any]:
        """bos, eos and pad; one outside of the vocabulary (-1 in some files) means none."""
        ids = {}
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = self.take(key, default=None)
            several = [i for i in value if 0 <= i < vocab_size] if isinstance(value, list) else value
            is_one = isinstance(several, int) and 0 <= several < vocab_size
            ids[key] = several if is_one or (isinstance(several, list) and several) else None
        return ids

    def rope(self, config: Mapping[str, Any], *, theta: float = 10000.0, factor: float = 1.0) -> dict[str, Any]:
        """The rotary keys, from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling`.

        Args:
            config: what is known so far; needs max_position_embeddings.
            theta: the family's default base.
            factor: the family's default share of a head that is rotated.
        """
        theta = self.take("rope_theta", "rotary_emb_base", default=theta)
        factor = self.take("partial_rotary_factor", "rotary_pct", default=factor)
        longest = config["max_position_embeddings"]
        original = self.take("original_max_position_embeddings", default=None)
        old, new = self.take("rope_scaling", default={}), self.take("rope_parameters", default={})
        scaling = HuggingFaceValues({**old, **new}, f"{self._where}.rope_parameters")
        if original is not None:
            scaling._values.setdefault("original_max_position_embeddings", original)
        kind = scaling.take("rope_type", "type", default="default")
        theta = scaling.take("rope_theta", default=theta)
        factor = scaling.take("partial_rotary_factor", default=factor)
        found: dict[str, Any] = {"rope_theta": float(theta), "partial_rotary_factor": float(factor)}
        found["rope_scaling"] = scaling._scaling("longrope" if kind == "su" else kind, longest)
        scaling.refuse_rest()
        return found

    def refuse_rest(self) -> None:
        """Raises ConfigError, naming them, when there are keys that nobody took and that may mean something."""
        unknown = sorted(set(self._values) - _IGNORED)
        if unknown:
            raise ConfigError(
                f"{self._where}: cannot tell what {', '.join(unknown)} mean for the model; take them out if they do not"
                " change what it computes"
            )

    def _scaling(self, kind: str, longest: int) -> dict[str, Any] | None:
        original = self.take("original_max_position_embeddings", default=longest)
        if kind == "default":
            return None
        if kind in ("linear", "dynamic"):
            return {"rope_type": kind, "factor": float(self.take("factor"))}
        if kind == "llama3":
            keys = ("factor", "low_freq_factor", "high_freq_factor")
            numbers = {key: float(self.take(key)) for key in keys}
            return {"rope_type": kind, **numbers, "original_max_position_embeddings": original}
        if kind == "yarn":
            factor = float(self.take("factor", default=longest / original))
            scale, scale_all = self.take("mscale", default=None), self.take("mscale_all_dim", default=None)
            inferred = _yarn_scale(factor, scale) / _yarn_scale(factor, scale_all) if scale and scale_all else None
            return {
                "rope_type": kind,
                "factor": factor,
                "original_max_position_embeddings": original,
                "beta_fast": float(self.take("beta_fast", default=32)),
                "beta_slow": float(self.take("beta_slow", default=1)),
                "attention_factor": float(self.take("attention_factor", default=inferred or _yarn_scale(factor, 1.0))),
                "truncate": self.take("truncate", default=True),
            }
        if kind == "longrope":
            factor = float(self.take("factor", default=longest / original))
            inferred = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
            return {
                "rope_type": kind,
                "short_factor": [float(n) for n in self.take("short_factor")],
                "long_factor": [float(n) for n in self.take("long_factor")],
                "attention_factor": float(self.take("attention_factor", default=inferred)),
                "original_max_position_embeddings": original,
            }
        raise ConfigError(f"{self._where}.rope_type: found {kind!r}: a scaling that is not supported")


def from_huggingface(values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """The config of contract `model` for the parsed config.json of a model of transformers, old or new.

    Raises ConfigError for an unknown family, for a key that is not understood, and for a value that means a model
    which the contract has no key for; `where` begins the message.
    """
    from ms_gptmodel.families import FAMILIES  # it needs HuggingFaceValues

    theirs = HuggingFaceValues(values, where)
    kind = theirs.take("model_type")
    if kind not in FAMILIES:
        raise ConfigError(f"{where}.model_type: {kind!r} is not known; known: {', '.join(FAMILIES)}")
    config = {"model_type": kind, **FAMILIES[kind](theirs)}
    config.update(theirs.token_ids(config["vocab_size"]))
    theirs.refuse_rest()
    return ModelConfig.from_mapping(config, where)


def load_huggingface_config(path: str | Path) -> ModelConfig:
    """`from_huggingface` of the file `path`, or of `path`/config.json when `path` is a folder."""
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(values).__name__}")
    return from_huggingface(values, str(path))


def _yarn_scale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
