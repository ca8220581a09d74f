# ruff: noqa: D102 -- a class's docstring says what construct takes; suffixes spell shapes
"""A feed-forward layer of experts: a router sends each token through the few that suit it, none is dropped.

Shapes: R rows, H hidden, E experts, K experts a token, A = R K assignments, G groups of rows with one expert each.
"""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from ms_gptmodel.config import ModelConfig
from ms_gptmodel.feed_forward import FeedForward
from ms_gptmodel.kernels import select
from ms_gptmodel.projection import Projection

# Rows of a group are a multiple of this. MindSpore's MatMul on CPU works in tiles of 6 rows and a thread; in part of a
# tile it adds up in another order, and a row's last bits would depend on where other documents' rows put it.
_TILE = 48


class ExpertMatrices(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_GSI, the expert of each group or None (group g is expert g's) -> x weight^T, [G, S, O]."""

    def __init__(self, num_experts: int, in_width: int, out_width: int) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((num_experts, out_width, in_width), np.float32)), name="weight")
        self.multiply = ops.BatchMatMul(transpose_b=True)

    def construct(self, x_GSI: Tensor, expert_G: Tensor | None) -> Tensor:
        return self.multiply(x_GSI, self.weight if expert_G is None else ops.gather(self.weight, expert_G, 0))


class Experts(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """x_GSH, expert_G -> each group through its expert's feed-forward layer, [G, S, H]."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        kernels = select()
        count, hidden, inner, kind = (
            config.num_experts, config.hidden_size, config.moe_intermediate_size, config.hidden_act,
        )  # fmt: skip
        self.gate = ExpertMatrices(count, hidden, inner) if config.gated_mlp else None
        self.up = ExpertMatrices(count, hidden, inner)
        self.down = ExpertMatrices(count, inner, hidden)
        self.activate = kernels.GatedActivation(kind) if config.gated_mlp else kernels.Activation(kind)

    def construct(self, x_GSH: Tensor, expert_G: Tensor | None) -> Tensor:
        up = self.up(x_GSH, expert_G)
        inner = up.reshape(-1, up.shape[2])
        if self.gate is not None:
            inner = self.activate(self.gate(x_GSH, expert_G).reshape(-1, up.shape[2]), inner)
        else:
            inner = self.activate(inner)
        return self.down(inner.reshape(up.shape), expert_G)


class MoeFeedForward(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """rows [R, hidden] -> the sum of the chosen experts' outputs, weighted, and of the shared expert's if there is one.

    All shapes are static. Few rows: each takes a copy of its experts' matrices. Many: rows are sorted by expert into
    groups of equal size, so that the work is at most twice that of the chosen experts. Experts hardly more than
    chosen ones: all rows through all of them.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.shared_expert_intermediate_size
        self.num_experts = config.num_experts
        self.router = Projection(hidden, config.num_experts, False)
        self.choose = ExpertChoice(config.num_experts_per_tok, config.norm_topk_prob)
        self.experts = Experts(config)
        self.shared_expert = FeedForward(config, inner, has_bias=False) if inner else None
        self.shared_expert_gate = Projection(hidden, 1, False) if config.shared_expert_is_gated else None

    def construct(self, rows: Tensor) -> Tensor:
        return self.routed(rows)[0]

    def routed(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The rows after this layer, and the router's logits [R, E]."""
        logits = self.router(rows)
        expert_RK, weight_RK, _ = self.choose(logits)
        num_rows, per_token = expert_RK.shape
        if num_rows * per_token <= self.num_experts:
            mixed = self._few(rows, expert_RK, weight_RK)
        elif self.num_experts <= 2 * per_token:
            mixed = self._all(rows, expert_RK, weight_RK)
        else:
            mixed = self._grouped(rows, expert_RK, weight_RK)
        if self.shared_expert is not None:
            shared = self.shared_expert(rows)
            if self.shared_expert_gate is not None:
                gate = ops.cast(self.shared_expert_gate(rows), ms.float32)
                shared = shared * ops.cast(ops.sigmoid(gate), shared.dtype)
            mixed = mixed + shared
        return mixed, logits

    def _few(self, rows: Tensor, expert_RK: Tensor, weight_RK: Tensor) -> Tensor:
        num_rows, per_token = expert_RK.shape
        x_A1H = ops.repeat_interleave(rows, per_token, 0).expand_dims(1)
        out = self.experts(x_A1H, expert_RK.reshape(-1))
        return _mix(out.reshape(num_rows, per_token, -1), weight_RK)

    def _all(self, rows: Tensor, expert_RK: Tensor, weight_RK: Tensor) -> Tensor:
        num_rows, width = rows.shape
        x_ERH = ops.broadcast_to(rows.expand_dims(0), (self.num_experts, num_rows, width))
        out_ERH = self.experts(x_ERH, None).reshape(self.num_experts * num_rows, width)
        own = ops.cast(ops.arange(num_rows), ms.int32).reshape(-1, 1)
        out_RKH = ops.gather(out_ERH, expert_RK * num_rows + own, 0)
        return _mix(out_RKH, weight_RK)

    def _grouped(self, rows: Tensor, expert_RK: Tensor, weight_RK: Tensor) -> Tensor:
        (num_rows, per_token), width = expert_RK.shape, rows.shape[1]
        num_assignments = num_rows * per_token
        size = -(-num_assignments // (self.num_experts * _TILE)) * _TILE
        num_groups = num_assignments // size + self.num_experts  # an expert's last group may be part empty
        mine_AE = ops.cast(expert_RK.reshape(-1, 1) == _counted(self.num_experts).reshape(1, -1), ms.int32)
        place_A = (ops.cumsum(mine_AE, 0) * mine_AE).sum(1) - 1  # among the assignments of its expert
        groups_E = (mine_AE.sum(0) + size - 1) // size
        ends_E = ops.cumsum(groups_E, 0)
        slot_A = (mine_AE * ((ends_E - groups_E) * size).reshape(1, -1)).sum(1) + place_A
        expert_G = ops.cast(_counted(num_groups).reshape(-1, 1) >= ends_E.reshape(1, -1), ms.int32).sum(1)
        expert_G = ops.minimum(expert_G, self.num_experts - 1)  # groups beyond the last expert's: nobody reads them
        row_of_slot = ops.zeros((num_groups * size,), ms.int32)
        row_of_slot = ops.tensor_scatter_update(
            row_of_slot, slot_A.reshape(-1, 1), _counted(num_assignments) // per_token
        )
        x_GSH = ops.gather(rows, row_of_slot, 0).reshape(num_groups, size, width)
        out = self.experts(x_GSH, expert_G).reshape(num_groups * size, width)
        return _mix(ops.gather(out, slot_A.reshape(num_rows, per_token), 0), weight_RK)


class ExpertChoice(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """Router logits [R, E] -> the chosen experts [R, K], their weights [R, K], who was chosen as 0 and 1 [R, E].

    Probabilities are a softmax over all experts in fp32; of equal ones the lower number is chosen first.
    """

    def __init__(self, per_token: int, sums_to_one: bool) -> None:
        super().__init__()
        self.per_token, self.sums_to_one = per_token, sums_to_one

    def construct(self, logits_RE: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        probability_RE = ops.softmax(ops.cast(logits_RE, ms.float32), -1)
        number_1E = _counted(logits_RE.shape[1]).reshape(1, -1)
        left_RE, chosen_RE = ops.stop_gradient(probability_RE), ops.zeros_like(probability_RE)
        experts, weights = [], []
        for _ in range(self.per_token):
            best_R1 = ops.cast(ops.argmax(left_RE, -1, True), ms.int32)
            this_RE = ops.cast(best_R1 == number_1E, ms.float32)
            left_RE, chosen_RE = left_RE - 2.0 * this_RE, chosen_RE + this_RE
            experts.append(best_R1)
            weights.append((probability_RE * this_RE).sum(-1, keepdims=True))
        weight_RK = ops.concat(weights, 1)
        if self.sums_to_one:
            weight_RK = weight_RK / weight_RK.sum(-1, keepdims=True)
        return ops.concat(experts, 1), weight_RK, chosen_RE


class RouterLoss(nn.Cell):  # type: ignore[misc]  # MindSpore has no types
    """The routers' logits, a list of [R, E]; counts [R], 1 for a token, 0 for padding -> the auxiliary loss, fp32.

    Load balancing is E sum_e f_e P_e over the tokens of all layers, f_e being the choices of expert e and P_e its
    probability, each per token (Fedus et al. 2021, equations 4 to 6, for K choices as Mixtral has it); the z-loss is
    the mean square of log sum exp (Zoph et al. 2022, equation 5). Both with their coefficients; 0 without a token.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.balance, self.z = config.router_aux_loss_coef, config.router_z_loss_coef
        self.num_experts = config.num_experts
        self.choose = ExpertChoice(config.num_experts_per_tok, config.norm_topk_prob)

    def construct(self, logits: list[Tensor], counts_R: Tensor) -> Tensor:
        counts_1R = ops.cast(counts_R, ms.float32).reshape(1, -1)
        total = ops.maximum(counts_1R.sum(), 1.0) * len(logits)
        choices_1E = ops.zeros((1, self.num_experts), ms.float32)
        probability_1E, squares = choices_1E, choices_1E.sum()
        for logits_RE in logits:
            x = ops.cast(logits_RE, ms.float32)
            choices_1E = choices_1E + ops.matmul(counts_1R, ops.stop_gradient(self.choose(x)[2]))
            probability_1E = probability_1E + ops.matmul(counts_1R, ops.softmax(x, -1))
            largest = ops.stop_gradient(x.max(-1, keepdims=True))
            lse_R = ops.log(ops.exp(x - largest).sum(-1)) + largest.reshape(-1)
            squares = squares + (counts_1R.reshape(-1) * lse_R * lse_R).sum()
        balance = (choices_1E * probability_1E).sum() * (self.num_experts / (total * total))
        return self.balance * balance + self.z * squares / total


def _mix(out_RKH: Tensor, weight_RK: Tensor) -> Tensor:
    """Sum over K of weight times output."""
    return (out_RKH * ops.cast(weight_RK, out_RKH.dtype).expand_dims(2)).sum(1)


def _counted(count: int) -> Tensor:
    return ops.cast(ops.arange(count), ms.int32)
