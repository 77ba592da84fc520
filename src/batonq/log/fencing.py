"""The fencing rule: how one frame is appended to a replicated log, whatever the network does meanwhile.

One append is under way a shard. No answer is not a failure: the identical frame is sent again for the same place. When
the log turns out to end elsewhere, what stands in that place tells: this very frame, by its digest, is committed; a
frame of another owner, under an epoch that is not below ours, means that the log is theirs. Only that, or a log that
does not fit what was committed before, ends the waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from batonq.errors import Fenced, LogCorrupt, LogError
from batonq.log import frames
from batonq.log.backend import Backend, Unreachable, WrongEnd
from batonq.log.frames import Frame

LOOKS_MAX = 20  # answers of "the log ends before that" that are not believed, because they may be stale


@dataclass(slots=True, frozen=True)
class Pauses:
    """Between two tries: the first one, and the longest, which it doubles up to."""

    first_s: float = 0.02
    longest_s: float = 1.0

    def after(self, tries: int) -> float:
        return min(self.first_s * (1 << min(tries, 16)), self.longest_s)


class Behind(LogError):
    """The log has grown since it was read: what an owner before this one sent came late. Read on, and try again."""

    retryable = True


async def commit(
    backend: Backend,
    frame: Frame,
    tail_epoch: int,
    pauses: Pauses,
    on_trouble: Callable[[Unreachable], None],
) -> None:
    """Append a frame for good; `tail_epoch` is that of the frame before it.

    Returns when it is committed, however long that takes; `on_trouble` hears why it takes long. Raises Fenced, Behind
    (only for an owner's first frame), and LogCorrupt when what is stored does not fit what was committed before.
    """
    if frame.size > backend.frame_bytes_max:
        raise LogError(
            f"frame {frame.number} has {frame.size} bytes, {backend.where} takes {backend.frame_bytes_max} at once"
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
                        f"{backend.where} ends before frame {frame.number}, although frame {frame.number - 1} was "
                        "committed: it has lost what it acknowledged. Nothing was changed. Restore it if you can; this "
                        "node's mirror has the frames up to there."
                    ) from None
                on_trouble(Unreachable(f"{backend.where} has not settled what stands at frame {frame.number}"))
        except Unreachable as problem:
            on_trouble(problem)
        await asyncio.sleep(pauses.after(tries))
        tries += 1


_COMMITTED = "committed"
_NOT_YET = "not yet"
_ENDS_BEFORE = "ends before"


async def _look(backend: Backend, frame: Frame, tail_epoch: int) -> str:
    """What the place of a refused frame tells."""
    stored = await backend.find(frame.number)
    if stored is None:
        bounds = await backend.bounds()
        if bounds.first > frame.number:
            raise Fenced(f"{backend.where} was shortened past frame {frame.number}, which another owner must have done")
        return _ENDS_BEFORE if bounds.next < frame.number else _NOT_YET
    try:
        other = frames.parse(stored)
    except LogCorrupt as problem:
        raise LogCorrupt(f"{backend.where}, frame {frame.number}: {problem.message}") from None
    if other.digest == frame.digest:
        return _COMMITTED
    if other.epoch >= frame.epoch:
        raise Fenced(
            f"epoch {frame.epoch} has ended: {backend.where} has a frame {frame.number} of epoch {other.epoch}"
        )
    if tail_epoch < frame.epoch:
        raise Behind(
            f"{backend.where} has a frame {frame.number} of epoch {other.epoch} that was not there when it was read"
        )
    raise LogCorrupt(
        f"{backend.where} has a frame {frame.number} of epoch {other.epoch} after one of epoch {tail_epoch}: it took "
        "what it must refuse"
    )
