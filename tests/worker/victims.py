"""A parent with everything imported, that forks workers and kills them: `victims.py URL WORKERS KILLS SEED`.

Every second one that it kills has stopped itself with a message in hand, before the message's effect or between the
effect and the acknowledgement; the others are killed at some moment. It says how many it has killed in a line each, and
after the last goes on without killing until its input ends.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from typing import Any

from batonq.worker import Message, Middleware
from tests.support.doubles import double
from tests.worker.apps import app

PAUSE_S = 0.07  # on average, before a kill at some moment
MESSAGES_MAX = 20  # that a worker handles before it stops itself


@double()
class Stopping(Middleware):
    """Stops its process at so many-th message, at a chosen point."""

    def __init__(self, point: str, after: int) -> None:
        self._point = point
        self._left = after

    async def around(self, message: Any, call: Any) -> Any:
        self._left -= 1
        if self._left <= 0 and self._point == "before the effect":
            os.kill(os.getpid(), signal.SIGSTOP)
        return await call(message)

    def done(self, message: Message) -> None:
        if self._left <= 0 and self._point == "before the ack":
            os.kill(os.getpid(), signal.SIGSTOP)


def fork(url: str, stopping: Stopping | None = None) -> int:
    pid = os.fork()
    if pid:
        return pid
    if stopping is not None:
        app.use(stopping)
    app.connect_to(url)
    os._exit(app.run(queues=["effects"], drain_seconds=10))


def main(url: str, workers: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    alive = [fork(url) for _ in range(workers)]
    for killed in range(1, kills + 1):
        if killed % 2:
            point = ("before the effect", "before the ack")[killed // 2 % 2]
            victim = fork(url, Stopping(point, chance.randint(1, MESSAGES_MAX)))
            _, status = os.waitpid(victim, os.WUNTRACED)
            assert os.WIFSTOPPED(status), status
        else:
            time.sleep(chance.uniform(0, 2 * PAUSE_S))
            victim = alive.pop(chance.randrange(len(alive)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        if not killed % 2:
            alive.append(fork(url))
        print(killed, flush=True)
    select.select([sys.stdin], [], [])
    for pid in alive:
        os.kill(pid, signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in alive]
    sys.exit(0 if not any(codes) else f"workers ended with {codes}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
