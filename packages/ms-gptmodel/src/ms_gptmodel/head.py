# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""From rows to logits: the output matrix, its bias, and what some families put before it or after."""

import numpy as np
from mindspore import Parameter, Tensor, nn

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.kernels import select
from ms_gptmodel.norms import block_norm
from ms_gptmodel.projection import Projection


class Head(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, embedding_size], the embedding's matrix -> logits [R, vocab]; has a matrix of its own unless tied.

    Rows of the matrix that pad the vocabulary give no logits.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kernels = select()
        rows, width, is_tied = config.padded_vocab_size, config.embedding_size, config.tie_word_embeddings
        self.vocab_size, self.is_padded = config.vocab_size, rows > config.vocab_size
        self.weight = None if is_tied else Parameter(Tensor(np.zeros((rows, width), np.float32)), name="weight")
        has_bias = config.lm_head_bias
        self.bias = Parameter(Tensor(np.zeros(rows, np.float32)), name="bias") if has_bias else None
        self.linear = kernels.BiasedLinear() if has_bias else kernels.Linear()
        self.soft_cap = config.final_logit_softcapping
        self.cap = kernels.SoftCap(self.soft_cap) if self.soft_cap is not None else None

    def construct(self, rows: Tensor, embedding_weight: Tensor) -> Tensor:
        weight = embedding_weight if self.weight is None else self.weight
        logits = self.linear(rows, weight) if self.bias is None else self.linear(rows, weight, self.bias)
        if self.is_padded:
            logits = logits[:, : self.vocab_size]
        return logits if self.cap is None else self.cap(logits)


class HeadTransform(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, hidden] -> norm(act(dense(rows))), before the head (Devlin et al. 2018's masked language model)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = Projection(config.hidden_size, config.hidden_size, True)
        self.activate = select().Activation(config.hidden_act)
        self.norm = block_norm(config)

    def construct(self, rows: Tensor) -> Tensor:
        return self.norm(self.activate(self.dense(rows)))
