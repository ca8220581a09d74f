"""Golden file of contract `metrics`: a run of three logged steps with an evaluation, a sample and a null."""

import json
import math
from pathlib import Path
from typing import Any


def write(folder: Path) -> None:
    """Writes `metrics.jsonl`."""
    evaluation = {"kind": "evaluation", "step": 20, "samples": 160, "loss": 4.25, "perplexity": math.exp(4.25)}
    lines = [
        {"format": "ms-trainloop.metrics", "version": 1},
        _train(10, loss=5.5451774444795625, grad_norm=1.25, mfu=None, skipped=0),
        _train(20, loss=4.3, grad_norm=0.1 + 0.2, mfu=0.375, skipped=0) | {"auxiliary_loss": 0.0103},
        evaluation | {"tokens": 1500, "seconds": 0.75},
        {"kind": "sample", "step": 20, "prompt": "从前", "text": '从前有座山。\n"the end"'},
        _train(30, loss=None, grad_norm=None, mfu=0.375, skipped=1),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8", newline="\n")


def _train(step: int, loss: float | None, grad_norm: float | None, mfu: float | None, skipped: int) -> dict[str, Any]:
    return {
        "kind": "train",
        "step": step,
        "samples": 8 * step,
        "tokens": 1000 * step,
        "loss": loss,
        "grad_norm": grad_norm,
        "learning_rate": 3e-4 * step / 30,
        "loss_scale": 65536.0,
        "tokens_per_second": 4171.5,
        "data_wait": 0.01,
        "mfu": mfu,
        "skipped_steps": skipped,
    }
