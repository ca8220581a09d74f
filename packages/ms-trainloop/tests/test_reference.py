"""Eight steps of the whole training step against an independent reference in float64, written out by hand."""

import math

import numpy as np
import pytest

RATES = {"learning_rate": 0.02, "min_learning_rate": 0.002, "warmup_steps": 3, "steps": 12}


class Reference:
    """TinyModel with its backward pass, clipping, warm-up and cosine, and AdamW, all in float64 numpy."""

    def __init__(self, weights, *, clip, decay=0.1, is_token_weighted=True):
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.v = {name: np.zeros_like(value) for name, value in self.w.items()}
        self.clip, self.decay, self.is_token_weighted, self.t = clip, decay, is_token_weighted, 0

    def step(self, batch, num_parts=1):
        """Loss sum, labels, gradient norm and rate of one step; the gradient of the mean, or the mean of the means."""
        parts = [self._gradients(*rows) for rows in zip(*(np.split(batch[k], num_parts) for k in batch), strict=True)]
        loss, count = sum(part[0] for part in parts), sum(part[1] for part in parts)
        weights = [1 / count if self.is_token_weighted else 1 / part[1] / num_parts for part in parts]
        gradients = {
            name: sum(scale * part[2][name] for scale, part in zip(weights, parts, strict=True)) for name in self.w
        }
        norm = math.sqrt(sum((g**2).sum() for g in gradients.values()))
        rate = self._rate()
        self.t += 1
        for name, gradient in gradients.items():
            gradient = gradient * min(1, self.clip / (norm + 1e-6))
            self.m[name] = 0.9 * self.m[name] + 0.1 * gradient
            self.v[name] = 0.95 * self.v[name] + 0.05 * gradient**2
            has_decay = name in ("mlp.up.weight", "lm_head.weight")
            self.w[name] = self.w[name] * (1 - rate * (self.decay if has_decay else 0.0))
            m_hat, v_hat = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.95**self.t)
            self.w[name] = self.w[name] - rate * m_hat / (np.sqrt(v_hat) + 1e-8)
        return loss, count, norm, rate

    def _rate(self):
        if self.t < 3:
            return 0.02 * (self.t + 1) / 3
        return 0.002 + 0.018 * (1 + math.cos(math.pi * (self.t - 2) / 9)) / 2

    def _gradients(self, ids, labels):
        embedding, up, bias, norm, head = self.w.values()
        ids, labels = ids.ravel(), labels.ravel()
        x = embedding[ids]
        y = x @ up.T + bias
        gate = 1 / (1 + np.exp(-y))
        mixed = x + y * gate
        logits = (mixed * norm) @ head.T
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        kept = labels != -100
        loss = -np.log(p[kept, labels[kept]]).sum()
        p[kept, labels[kept]] -= 1
        p[~kept] = 0
        d_normed = p @ head
        d_mixed = d_normed * norm
        d_y = d_mixed * (gate + y * gate * (1 - gate))
        d_embedding = np.zeros_like(embedding)
        np.add.at(d_embedding, ids, d_mixed + d_y @ up)
        gradients = {
            "embedding.weight": d_embedding,
            "mlp.up.weight": d_y.T @ x,
            "mlp.up.bias": d_y.sum(0),
            "norm.weight": (d_normed * mixed).sum(0),
            "lm_head.weight": p.T @ (mixed * norm),
        }
        return loss, kept.sum(), gradients


def batches(lab, count=8):
    """Batches whose rows have very different numbers of labels."""
    source = lab.batches_of(lab.make_rows(), 4)(0)
    for _, batch in zip(range(count), source, strict=False):
        batch["labels"][0, 2:] = -100
        yield batch


@pytest.mark.parametrize(("micro_batch_size", "mode"), [(4, "graph"), (2, "graph"), (1, "graph"), (2, "pynative")])
def test_eight_steps_equal_the_reference_in_loss_norm_rate_and_weights(lab, micro_batch_size, mode):
    step = lab.make_step(lab.make_config(micro_batch_size=micro_batch_size, mode=mode, max_grad_norm=0.25, **RATES))
    reference = Reference(lab.weights_of(step), clip=0.25)

    for batch in batches(lab):
        found = step.run(batch)

        loss, count, norm, rate = reference.step({key: batch[key] for key in ("input_ids", "labels")})
        assert norm > 0.25, "clipping must be at work for this test to mean something"
        assert found.tokens == count
        np.testing.assert_allclose(
            [found.loss_sum, found.grad_norm, found.learning_rate], [loss, norm, rate], rtol=3e-6
        )
        for name, value in lab.weights_of(step).items():
            np.testing.assert_allclose(value, reference.w[name], atol=2e-6, err_msg=name)
    assert mode == "pynative" or len(step.compile_cache) == 1


def test_two_ranks_with_the_same_rows_equal_the_reference_on_the_joined_batch(lab):
    config = lab.make_config(global_batch_size=8, micro_batch_size=2, max_grad_norm=0.25, **RATES)
    step = lab.make_step(config, all_reduce=lab.Doubling(), world_size=2)
    reference = Reference(lab.weights_of(step), clip=0.25)

    for batch in batches(lab):
        found = step.run(batch)

        joined = {key: np.concatenate((batch[key], batch[key])) for key in ("input_ids", "labels")}
        loss, count, norm, _ = reference.step(joined)
        assert found.tokens == count
        np.testing.assert_allclose([found.loss_sum, found.grad_norm], [loss, norm], rtol=3e-6)
    for name, value in lab.weights_of(step).items():
        np.testing.assert_allclose(value, reference.w[name], atol=2e-6, err_msg=name)


@pytest.mark.parametrize("fault", ["mean of the means", "decay forgotten", "not clipped"])
def test_the_comparison_finds_a_fault(lab, fault):
    step = lab.make_step(lab.make_config(micro_batch_size=2, max_grad_norm=0.25, **RATES))
    options = {
        "mean of the means": {"clip": 0.25, "is_token_weighted": False},
        "decay forgotten": {"clip": 0.25, "decay": 0.0},
        "not clipped": {"clip": 1e9},
    }
    reference = Reference(lab.weights_of(step), **options[fault])

    for batch in batches(lab):
        step.run(batch)
        reference.step({key: batch[key] for key in ("input_ids", "labels")}, num_parts=2)

    found = lab.weights_of(step)
    assert max(np.abs(found[name] - value).max() for name, value in reference.w.items()) > 1e-5
