"""BERT for masked language modelling: an encoder with its norms behind the sums and a transformed, tied head."""

from ms_weightconv.families.lines import (
    ACTIVATIONS,
    ALL_BIASES,
    BLOCK,
    COMMON_FIELDS,
    LAYER_NORMS,
    dropout,
    linear,
    token_ids,
)
from ms_weightconv.family import Family, Field, Limit
from ms_weightconv.rules import Drop, Duplicate, Rule, Tie

_LAYER = "bert.encoder.layer.{layer}"
_NEXT_SENTENCE = "of next sentence prediction, no part of a language model"

BERT = Family(
    name="bert",
    architecture="BertForMaskedLM",
    prefix="bert.",
    rules=(
        Rule("bert.embeddings.word_embeddings.weight", "embedding.weight"),
        Rule("bert.embeddings.position_embeddings.weight", "position_embedding.weight"),
        Rule("bert.embeddings.token_type_embeddings.weight", "token_type_embedding.weight"),
        *linear("bert.embeddings.LayerNorm", "embedding_norm", bias=""),
        *linear(f"{_LAYER}.attention.self.query", f"{BLOCK}.attention.query", bias=""),
        *linear(f"{_LAYER}.attention.self.key", f"{BLOCK}.attention.key", bias=""),
        *linear(f"{_LAYER}.attention.self.value", f"{BLOCK}.attention.value", bias=""),
        *linear(f"{_LAYER}.attention.output.dense", f"{BLOCK}.attention.output", bias=""),
        *linear(f"{_LAYER}.attention.output.LayerNorm", f"{BLOCK}.attention_norm", bias=""),
        *linear(f"{_LAYER}.intermediate.dense", f"{BLOCK}.mlp.up", bias=""),
        *linear(f"{_LAYER}.output.dense", f"{BLOCK}.mlp.down", bias=""),
        *linear(f"{_LAYER}.output.LayerNorm", f"{BLOCK}.mlp_norm", bias=""),
        *linear("cls.predictions.transform.dense", "lm_head_transform.dense", bias=""),
        *linear("cls.predictions.transform.LayerNorm", "lm_head_transform.norm", bias=""),
        Tie("cls.predictions.decoder.weight", "lm_head.weight", to="embedding.weight"),
        Rule("cls.predictions.bias", "lm_head.bias"),
        Duplicate("cls.predictions.decoder.bias", of="cls.predictions.bias"),
        Drop("bert.embeddings.position_ids", "the numbers 0, 1, 2 ..., not a weight"),
        Drop("bert.pooler.dense.weight", _NEXT_SENTENCE),
        Drop("bert.pooler.dense.bias", _NEXT_SENTENCE),
        Drop("cls.seq_relationship.weight", _NEXT_SENTENCE),
        Drop("cls.seq_relationship.bias", _NEXT_SENTENCE),
    ),
    fields=(
        *COMMON_FIELDS,
        *dropout("attention_probs_dropout_prob", residual="hidden_dropout_prob", embedding="hidden_dropout_prob"),
        *token_ids(None, None, 0),
        Field("hidden_size", "hidden_size"),
        Field("num_hidden_layers", "num_hidden_layers"),
        Field("num_attention_heads", "num_attention_heads"),
        Field("intermediate_size", "intermediate_size"),
        Field("max_position_embeddings", "max_position_embeddings", 512),
        Field("type_vocab_size", "type_vocab_size", 2),
        Field("layer_norm_eps", "layer_norm_eps", 1e-12),
        Field("hidden_act", "hidden_act", "gelu", spellings=ACTIVATIONS),
        Field("tie_word_embeddings", "tie_word_embeddings", True),
    ),
    constants={
        **LAYER_NORMS,
        **ALL_BIASES,
        "lm_head_bias": True,
        "lm_head_transform": True,
        "norm_placement": "post",
        "final_norm": False,
        "is_causal": False,
        "position_kind": "learned",
        "embedding_norm": True,
    },
    limits=(Limit("is_decoder", (False,), "attention sees only what came before"),),
    spellings=(("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")),
)
