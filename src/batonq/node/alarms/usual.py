"""The usual depth of each queue: a slow moving average over hours, which takes a few numbers per queue."""

from __future__ import annotations

from collections.abc import Mapping

HOUR_MS = 3_600_000
HOURS_MIN = 6  # complete hours before there is a usual depth
HOURS_AVERAGED = 24  # an hour's weight in the average is one in so many, once there are as many
QUEUES_MAX = 20_000


class UsualDepths:
    """Feed it with `observe`; `of` is None until enough is known about a queue."""

    def __init__(self, saved: Mapping[str, tuple[float, int]] | None = None) -> None:
        # per queue: the hour being measured, the sum and the number of its samples, the average, the hours in it
        self._queues: dict[str, list[float]] = {
            queue: [-1, 0.0, 0, usual, hours] for queue, (usual, hours) in (saved or {}).items()
        }
        self.hours_ended = 0  # grows when there is something new to save

    def observe(self, queue: str, depth: int, now_ms: int) -> float | None:
        """Count a sample, and return the usual depth of the hours before this one."""
        hour = now_ms // HOUR_MS
        state = self._queues.get(queue)
        if state is None:
            if len(self._queues) >= QUEUES_MAX:
                return None
            self._queues[queue] = [hour, depth, 1, 0.0, 0]
            return None
        if hour != state[0]:
            self._end_hour(state, hour)
        state[1] += depth
        state[2] += 1
        return state[3] if state[4] >= HOURS_MIN else None

    def _end_hour(self, state: list[float], hour: int) -> None:
        """Add the measured hour to the average. An hour of the future is one that a clock was set back from."""
        if state[2] and state[0] < hour:
            state[4] += 1
            weight = 1 / min(state[4], HOURS_AVERAGED)
            state[3] += weight * (state[1] / state[2] - state[3])
            self.hours_ended += 1
        state[0], state[1], state[2] = hour, 0.0, 0

    def keep(self, queues: set[str]) -> None:
        """Forget the queues that no longer exist."""
        for queue in self._queues.keys() - queues:
            del self._queues[queue]

    def saved(self) -> dict[str, tuple[float, int]]:
        return {queue: (round(state[3], 1), int(state[4])) for queue, state in self._queues.items() if state[4]}
