"""A parent with everything imported, that forks workers and kills them at random: `victims.py URL WORKERS KILLS SEED`.

It says how many it has killed in a line each, and after the last goes on without killing until its input ends.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time

from tests.worker.apps import app

PAUSE_S = 0.07  # between two kills, on average


def fork(url: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    app.connect_to(url)
    os._exit(app.run(queues=["effects"], drain_seconds=10))


def main(url: str, workers: int, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    alive = [fork(url) for _ in range(workers)]
    for killed in range(1, kills + 1):
        time.sleep(chance.uniform(0, 2 * PAUSE_S))
        victim = alive.pop(chance.randrange(len(alive)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        alive.append(fork(url))
        print(killed, flush=True)
    select.select([sys.stdin], [], [])
    for pid in alive:
        os.kill(pid, signal.SIGTERM)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in alive]
    sys.exit(0 if not any(codes) else f"workers ended with {codes}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
