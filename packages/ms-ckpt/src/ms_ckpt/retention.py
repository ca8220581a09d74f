"""Which checkpoints may go."""

from collections.abc import Sequence

from ms_ckpt.config import CheckpointConfig


def superfluous_steps(steps: Sequence[int], config: CheckpointConfig, just_saved: int | None = None) -> list[int]:
    """The steps that the configuration no longer keeps, in ascending order.

    `steps` are those of valid checkpoints only, whichever run wrote them: a damaged one never counts towards
    `keep_last`, so the last valid one always stays. `just_saved` stays too, even when newer steps exist.
    """
    if config.keep_last == 0:
        return []
    kept = set(sorted(steps)[-config.keep_last :]) | {just_saved}
    if config.keep_every:
        kept |= {step for step in steps if step % config.keep_every == 0}
    return sorted(set(steps) - kept)
