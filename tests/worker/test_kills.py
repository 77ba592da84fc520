"""Workers killed with -9 all the time: every message has its effect exactly once, and none is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter

from batonq.client.blocking.baton import Baton
from tests.support.profile import FULL
from tests.worker.processes import ROOT, TIMEOUT_S, Stage, wait_until
from tests.worker.test_processes import effects, make_effects

KILLS = 200 if FULL else 40
WORKERS = 8
SEED = int(os.environ.get("SEED", "1"))
BATCH = 50
DEPTH = 200


def test_every_message_has_its_effect_exactly_once_while_workers_are_killed(baton: Baton, stage: Stage) -> None:
    queue = baton.create_queue("effects")
    make_effects(stage.effects)
    with (stage.directory / "victims.log").open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.victims", stage.url, str(WORKERS), str(KILLS), str(SEED)],
            cwd=ROOT,
            env={**os.environ, **stage.environment(), "VISIBILITY": "2"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert parent.stdin is not None and parent.stdout is not None
    killed, killed_s = 0, time.monotonic()

    def count() -> None:
        nonlocal killed, killed_s
        assert parent.stdout is not None
        for line in parent.stdout:
            killed, killed_s = int(line), time.monotonic()

    counting = threading.Thread(target=count)
    counting.start()
    sent = 0
    try:
        while killed < KILLS:
            assert parent.poll() is None, (stage.directory / "victims.log").read_text()
            assert time.monotonic() < killed_s + TIMEOUT_S, f"nobody was killed after the {killed}th"
            if queue.stats().visible < DEPTH:
                queue.send_many(range(sent, sent + BATCH))
                sent += BATCH
        wait_until(lambda: queue.stats().depth == 0, "the end of the work")
        parent.stdin.close()
        code = parent.wait(TIMEOUT_S)
    finally:
        parent.kill()
        counting.join(TIMEOUT_S)
        parent.stdout.close()
    assert code == 0, (stage.directory / "victims.log").read_text()
    found = Counter(effects(stage.effects))
    assert set(found) == set(range(sent)) and set(found.values()) == {1}
    # Every second kill hit a worker with a message in hand, or this would show nothing.
    assert queue.stats().received >= sent + KILLS // 2
    print(f"{KILLS} kills, {sent} messages, {queue.stats().received - sent} delivered again")
