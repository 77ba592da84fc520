"""The fencing rule: how one frame is appended to a replicated log, whatever the network does.

There is one append in progress per shard. A timeout is not a failure: the identical frame is sent again for the same
number. If the log turns out to end elsewhere, the owner reads the frame with that number: its own frame, by digest, is
committed; a frame of another owner, with an epoch that is not below its own, means that it is fenced. Only that, or a
log that contradicts what was committed before, ends the retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from batonq.errors import Fenced, LogCorrupt, LogError
from batonq.log import frames
from batonq.log.backend import Backend, Unreachable, WrongEnd
from batonq.log.frames import Frame

LOOKS_MAX = 20  # replies of "the log ends before that" that are ignored, because they may be stale


@dataclass(slots=True, frozen=True)
class Pauses:
    """The first and the maximum pause between two attempts; it doubles in between."""

    first_s: float = 0.02
    longest_s: float = 1.0

    def after(self, tries: int) -> float:
        return min(self.first_s * (1 << min(tries, 16)), self.longest_s)


class Behind(LogError):
    """The log has grown since it was read, because a frame of a previous owner arrived late. Read on, and retry."""

    retryable = True


async def commit(
    backend: Backend,
    frame: Frame,
    tail_epoch: int,
    pauses: Pauses,
    on_trouble: Callable[[Unreachable], None],
) -> None:
    """Append a frame; `tail_epoch` is the epoch of the frame before it.

    Returns when the frame is committed, however long that takes; `on_trouble` is called with the reason for a delay.
    Raises Fenced, Behind (only for an owner's first frame), and LogCorrupt if the stored log contradicts what was
    committed before.
    """
    if frame.size > backend.frame_bytes_max:
        raise LogError(
            f"frame {frame.number} has {frame.size} bytes, but {backend.where} accepts at most "
            f"{backend.frame_bytes_max} at once"
        )
    tries = ends_before = 0
    while True:
        try:
            await backend.append(frame)
            return
        except WrongEnd:
            try:
                found = await _look(backend, frame, tail_epoch)
            except Unreachable as problem:
                on_trouble(problem)
            else:
                if found is _COMMITTED:
                    return
                ends_before += found is _ENDS_BEFORE
                if ends_before > LOOKS_MAX:
                    raise LogCorrupt(
                        f"{backend.where} ends before frame {frame.number}, although frame {frame.number - 1} "
                        "was committed: it has lost acknowledged data. Nothing was changed. Restore it if "
                        "you can; this node's mirror has the frames up to there."
                    ) from None
                on_trouble(Unreachable(f"{backend.where} has no definite answer about frame {frame.number} yet"))
        except Unreachable as problem:
            on_trouble(problem)
        await asyncio.sleep(pauses.after(tries))
        tries += 1


_COMMITTED = "committed"
_NOT_YET = "not yet"
_ENDS_BEFORE = "ends before"


async def _look(backend: Backend, frame: Frame, tail_epoch: int) -> str:
    """Decide by the entry at the number of a refused frame."""
    stored = await backend.find(frame.number)
    if stored is None:
        bounds = await backend.bounds()
        if bounds.first > frame.number:
            raise Fenced(
                f"{backend.where} was truncated past frame {frame.number}, which only another owner can have done"
            )
        return _ENDS_BEFORE if bounds.next < frame.number else _NOT_YET
    try:
        other = frames.parse(stored)
    except LogCorrupt as problem:
        raise LogCorrupt(f"{backend.where}, frame {frame.number}: {problem.message}") from None
    if other.digest == frame.digest:
        return _COMMITTED
    if other.epoch >= frame.epoch:
        raise Fenced(
            f"epoch {frame.epoch} has ended: {backend.where} has a frame {frame.number} with epoch {other.epoch}"
        )
    if tail_epoch < frame.epoch:
        raise Behind(
            f"{backend.where} has a frame {frame.number} with epoch {other.epoch} that did not exist when it was read"
        )
    raise LogCorrupt(
        f"{backend.where} has a frame {frame.number} with epoch {other.epoch} after one with epoch "
        f"{tail_epoch}: it accepted a frame that it must refuse"
    )
