"""The config of a model: the keys of contract `model`, checked, from plain values and back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ms_gptmodel.config_file import FORMAT, VERSION, read_config, write_whole
from ms_gptmodel.config_rules import rules
from ms_gptmodel.errors import ConfigError
from ms_gptmodel.mapping import from_mapping

_INHERITED = (
    "padded_vocab_size", "num_key_value_heads", "head_dim", "embedding_size", "query_pre_attn_scalar",
    "moe_intermediate_size",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What tells one model from another, in Hugging Face's words where Hugging Face has one."""

    vocab_size: int
    """Ids are 0 ... vocab_size - 1; the width of the logits."""
    hidden_size: int
    """Width of the residual stream."""
    num_hidden_layers: int
    """Number of blocks."""
    num_attention_heads: int
    """Number of query heads."""
    intermediate_size: int
    """Width inside the feed-forward layer."""
    max_position_embeddings: int
    """Number of positions; the longest sequence (with `dynamic` scaling: the longest one that is not scaled)."""
    model_type: str = "llama"
    """The family as Hugging Face spells it; for people and converters, no cell looks at it."""
    num_key_value_heads: int = None  # type: ignore[assignment]  # filled in below
    """Number of key/value heads, a divisor of the query heads; left out: as many as query heads."""
    head_dim: int = None  # type: ignore[assignment]  # filled in below
    """Width of one head; left out: hidden_size / num_attention_heads."""
    padded_vocab_size: int = None  # type: ignore[assignment]  # filled in below
    """Rows of the embedding and of the head; those from vocab_size on are padding that nothing sees. Left out:
    vocab_size."""
    embedding_size: int = None  # type: ignore[assignment]  # filled in below
    """Width of the embedding; where it is not hidden_size (the default), projections lead to and from it (OPT-350m)."""
    embedding_multiplier: float = 1.0
    """The embedding's output is multiplied by it (Gemma: the root of hidden_size)."""
    embedding_norm: bool = False
    """A norm follows the sum of the embeddings (BLOOM, BERT)."""
    type_vocab_size: int = 0
    """Rows of a token type embedding, 0 for none; every token is of type 0 (BERT)."""
    norm_kind: str = "rms_norm"
    """`rms_norm` or `layer_norm`."""
    norm_placement: str = "pre"
    """`pre`: x + f(norm(x)); `post`: norm(x + f(x)) (BERT); `sandwich`: x + post_norm(f(norm(x))) (Gemma 2 and 3)."""
    final_norm: bool = True
    """There is a norm before the head."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square, when norm_kind is rms_norm and in query and key norms."""
    layer_norm_eps: float = 1e-5
    """Added to the variance, when norm_kind is layer_norm."""
    norm_bias: bool = False
    """Layer norms have a bias; an RMS norm never has one."""
    rms_norm_adds_one: bool = False
    """RMS norms multiply by 1 + weight (Gemma)."""
    position_kind: str = "rotary"
    """`rotary`, `learned`, `alibi` or `none`."""
    position_offset: int = 0
    """Learned positions: position p uses row p + offset (OPT: 2)."""
    rope_theta: float = 10000.0
    """Base of the rotary frequencies."""
    rope_scaling: dict | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Stretching of the frequencies: rope_type `linear`, `dynamic`, `llama3`, `yarn`, `longrope`, with its keys."""
    rope_interleaved: bool = False
    """Pairs are (0, 1), (2, 3) ... (GPT-J) instead of (i, i + half)."""
    partial_rotary_factor: float = 1.0
    """Only this share of a head, from its start on, is rotated."""
    rope_local_base_freq: float | None = None
    """Rotary base, unscaled, of sliding layers; None: theirs is that of all (Gemma 3)."""
    is_causal: bool = True
    """Attention sees no later position; false: the whole segment (encoders)."""
    sliding_window: int | None = None
    """Positions that a sliding layer sees, the own one included; None: no layer slides."""
    layer_types: tuple | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """`full_attention` or `sliding_attention` for each layer; None: all slide if there is a window."""
    query_pre_attn_scalar: float = None  # type: ignore[assignment]  # filled in below
    """Attention scores are divided by its root; left out: head_dim."""
    attn_logit_softcapping: float | None = None
    """Attention scores x become cap * tanh(x / cap) before the mask (Gemma 2); None: not."""
    final_logit_softcapping: float | None = None
    """The same for logits."""
    hidden_act: str = "silu"
    """`silu`, `gelu` (exact), `gelu_new` (tanh form) or `relu`."""
    gated_mlp: bool = True
    """The feed-forward layer is down(act(gate) * up) instead of down(act(up))."""
    parallel_residual: bool = False
    """A block is x + attention(norm(x)) + mlp(norm(x)) (GPT-J, GPT-NeoX)."""
    parallel_norm_is_shared: bool = False
    """One norm feeds both branches of a parallel block (GPT-J, Phi)."""
    attention_bias: bool = False
    """Query, key and value have a bias."""
    attention_output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    """Gate, up and down of a dense feed-forward layer have a bias."""
    lm_head_bias: bool = False
    """The head has a bias, tied or not."""
    lm_head_transform: bool = False
    """Dense, activation and norm stand before the head (BERT)."""
    qk_norm: bool = False
    """Queries and keys pass an RMS norm over head_dim before rotation."""
    tie_word_embeddings: bool = False
    """The embedding is the output matrix as well."""
    num_experts: int = 0
    """Experts of a sparse feed-forward layer; 0: all layers are dense."""
    num_experts_per_tok: int = 2
    """Experts that a token goes through."""
    norm_topk_prob: bool = True
    """The chosen experts' weights are divided by their sum."""
    moe_intermediate_size: int = None  # type: ignore[assignment]  # filled in below
    """Width inside one expert; left out: intermediate_size."""
    mlp_only_layers: tuple = ()  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Numbers of layers that are dense although there are experts."""
    shared_expert_intermediate_size: int = 0
    """Width of an expert that sees every token; 0: none."""
    shared_expert_is_gated: bool = False
    """The shared expert's output is multiplied by a sigmoid of its own gate (Qwen2-MoE)."""
    router_aux_loss_coef: float = 0.0
    """Weight of the load-balancing loss in training (Fedus et al. 2021, equations 4 to 6)."""
    router_z_loss_coef: float = 0.0
    """Weight of the router's z-loss in training (Zoph et al. 2022, equation 5)."""
    embedding_dropout: float = 0.0
    """Rate of dropout after the embeddings, in training."""
    residual_dropout: float = 0.0
    """Rate of dropout on what a residual branch adds, in training."""
    attention_dropout: float = 0.0
    """Rate of dropout on attention probabilities, in training."""
    dropout_seed: int = 0
    """Seed of the masks."""
    initializer_range: float = 0.02
    """Standard deviation of fresh weights."""
    bos_token_id: int | None = None
    """Id that begins a text."""
    eos_token_id: int | tuple | None = None  # type: ignore[type-arg]  # get_type_hints must give a plain class
    """Id or ids that end a text."""
    pad_token_id: int | None = None
    """Id that fills rows."""
    tokenizer_fingerprint: str | None = None
    """Fingerprint of contract `dataset`; opaque here."""

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_attention_heads"):
            self._check(name, getattr(self, name) >= 1, "1 or more")
        if self.head_dim is None:
            divides = self.hidden_size % self.num_attention_heads == 0
            wanted = f"a divisor of hidden_size {self.hidden_size}, or head_dim given"
            self._check("num_attention_heads", divides, wanted)
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        for name, default in (
            ("num_key_value_heads", self.num_attention_heads),
            ("padded_vocab_size", self.vocab_size),
            ("embedding_size", self.hidden_size),
            ("query_pre_attn_scalar", float(self.head_dim)),
            ("moe_intermediate_size", self.intermediate_size),
        ):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.rope_scaling is not None:
            object.__setattr__(self, "rope_scaling", dict(self.rope_scaling))
        for name, holds, expected in rules(self):
            self._check(name, holds, expected)

    @property
    def rotary_dim(self) -> int:
        """Numbers of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def slides(self) -> tuple[bool, ...]:
        """For each layer, whether it sees the window only."""
        if self.layer_types is None:
            return (self.sliding_window is not None,) * self.num_hidden_layers
        return tuple(kind == "sliding_attention" for kind in self.layer_types)

    @property
    def has_experts(self) -> tuple[bool, ...]:
        """For each layer, whether its feed-forward layer is sparse."""
        return tuple(self.num_experts > 0 and n not in self.mlp_only_layers for n in range(self.num_hidden_layers))

    @property
    def num_positions(self) -> int:
        """Length of the longest sequence."""
        scaling = self.rope_scaling or {}
        stretch = scaling["factor"] if scaling.get("rope_type") == "dynamic" else 1
        return int(self.max_position_embeddings * stretch)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], section: str = "model") -> "ModelConfig":
        """The config in `values` (a parsed config.json, or section `model` of a run's YAML).

        `format` and `version` may be absent; when present they must be this reader's. Raises ConfigError with the
        full path of an unknown, missing or mistyped key.
        """
        values = dict(values)
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            found = values.pop(key, expected)
            if found != expected or isinstance(found, bool):
                raise ConfigError(f"{section}.{key}: expected {expected!r}, found {found!r}")
        for key in _INHERITED:
            if key in values and values[key] is None:
                del values[key]
        return from_mapping(cls, values, section)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """All ids that end a text, in order; empty when there is none."""
        if self.eos_token_id is None:
            return ()
        return self.eos_token_id if isinstance(self.eos_token_id, tuple) else (self.eos_token_id,)

    def to_mapping(self) -> dict[str, Any]:
        """All keys of config.json, `format` and `version` first, as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return {"format": FORMAT, "version": VERSION, **values}

    def to_json(self) -> str:
        """The text of config.json."""
        return json.dumps(self.to_mapping(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Writes config.json to `path`, whole or not at all."""
        write_whole(Path(path), self.to_json())

    def _check(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"model.{name}: expected {expected}, found {getattr(self, name)!r}")


def load_config(path: str | Path) -> ModelConfig:
    """The config in the file `path`, or in `path`/config.json when `path` is a folder.

    Raises ConfigError, naming the file, when it is not strict JSON or not a config of this version.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    return ModelConfig.from_mapping(read_config(path), str(path))
