"""The report of a conversion or a proof: what was done, what was left out, what was lost."""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ms_weightconv.words import CastLoss


@dataclass(frozen=True, kw_only=True)
class Report:
    """Evidence of one conversion or proof; a failure is an error, never a report."""

    source: Path
    """What was read."""
    target: Path
    """What was written, or compared."""
    layouts: tuple[str, str]
    """Layout of source and target: huggingface, mindspore or checkpoint."""
    family: str
    """The family whose table was used; the config's `model_type` where none was needed."""
    num_tensors: int
    """Tensors of the target, each verified by its checksum after it was written, or compared bit for bit."""
    num_parameters: int
    """Their elements."""
    num_bytes: int
    """Their bytes."""
    seconds: float
    """Time for all of it, verification included."""
    checksums: dict[str, str] = field(default_factory=dict)
    """crc32 of each tensor of the target by name."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Tensors of the source that were left out, with the reason."""
    casts: dict[str, CastLoss] = field(default_factory=dict)
    """What casting changed, by tensor of the source; tensors that kept their dtype are not in it."""
    carried_fields: tuple[str, ...] = ()
    """Keys of a Hugging Face config without effect on inference; kept in huggingface.json for the way back."""
    unknown_fields: tuple[str, ...] = ()
    """Keys that nothing here knows; kept as well, but look whether one of them changes the computation."""
    notes: tuple[str, ...] = ()
    """Everything else that a user should know."""

    def as_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return asdict(self) | {"source": str(self.source), "target": str(self.target)}

    def lines(self) -> list[str]:
        """The report for people: one line a fact, losses of casts summed up."""
        rate = self.num_bytes / max(self.seconds, 1e-9) / 1e9
        lines = [
            f"{self.layouts[0]} {self.source} -> {self.layouts[1]} {self.target}",
            f"family {self.family}: {self.num_tensors} tensors, {self.num_parameters:,} parameters, "
            f"{self.num_bytes:,} bytes in {self.seconds:.2f} s ({rate:.2f} GB/s, verification included)",
        ]
        lines += [f"left out: {name} ({reason})" for name, reason in self.dropped.items()]
        if self.casts:
            sums = {
                kind: sum(getattr(loss, f"num_{kind}") for loss in self.casts.values())
                for kind in ("rounded", "underflowed", "overflowed")
            }
            lines.append(f"cast {len(self.casts)} tensors: " + ", ".join(f"{n:,} {kind}" for kind, n in sums.items()))
            lines += [
                f"warning: {name}: {loss.num_overflowed:,} finite values became infinite in {loss.target_dtype}"
                for name, loss in self.casts.items()
                if loss.num_overflowed
            ]
        if self.carried_fields:
            lines.append(f"kept without effect: {', '.join(self.carried_fields)}")
        if self.unknown_fields:
            lines.append(f"warning: unknown config keys, kept but not interpreted: {', '.join(self.unknown_fields)}")
        return [*lines, *(f"note: {note}" for note in self.notes)]
