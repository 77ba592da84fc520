"""The fuzzer itself: it sees a stall, a loss and a wrong answer, and a seed gives the same bytes again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fuzz.asker import Asker
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.bounds import TURN_CPU_MS_MAX
from tests.fuzz.canary import Canary
from tests.fuzz.cases import Case, End, load
from tests.fuzz.documents import PLACEHOLDERS, Facts
from tests.fuzz.player import Played, Player, parse_answers
from tests.fuzz.run import case_of
from tests.fuzz.server import HOOK, FuzzedServer, Profile

FACTS = Facts("40404", "AgEAAA" + "x" * 38, "BATONABCDEFGHIJKLMNO", "20260102T030405Z")

LOOP = """
import asyncio, signal, os, time, uvloop

def burn(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

async def main():
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0.05)
    loop.call_soon({what})
    await asyncio.sleep(0.05)
    os.kill(os.getpid(), signal.SIGUSR2)
    await asyncio.sleep(0.05)

with asyncio.Runner(loop_factory={factory}) as runner:
    runner.run(main())
"""


@pytest.mark.parametrize("factory", ["uvloop.new_event_loop", "None"])
@pytest.mark.parametrize(("what", "seen"), [("burn, 0.12", True), ("time.sleep, 0.12", False)])
def test_the_watchdog_sees_a_long_turn_and_only_its_cpu_time(
    tmp_path: Path, factory: str, what: str, seen: bool
) -> None:
    watched = tmp_path / "watchdog.jsonl"
    program = LOOP.format(what=what, factory=factory)
    environment = {**os.environ, "PYTHONPATH": str(HOOK), "BATON_FUZZ_WATCHDOG": str(watched)}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    lines = [json.loads(line) for line in watched.read_text().splitlines()]
    long = [line for line in lines if line["what"] == "turn" and line["cpu_ms"] > TURN_CPU_MS_MAX]
    [report] = [line for line in lines if line["what"] == "report"]
    assert bool(long) is seen and (report["longest_ms"] > TURN_CPU_MS_MAX) is seen


def test_a_seed_gives_the_same_bytes_whichever_server_is_asked() -> None:
    cases = [case_of(profile, 7, number) for profile in Profile for number in range(100)]
    assert cases == [case_of(profile, 7, number) for profile in Profile for number in range(100)]
    assert len({case.data for case in cases}) > 250
    other = [case_of(profile, 8, number) for profile in Profile for number in range(100)]
    assert cases != other
    for case in cases:
        filled = FACTS.fill(case)
        assert [len(segment) for segment in filled.segments] == [len(segment) for segment in case.segments]
        assert PLACEHOLDERS.receipt.encode() not in filled.data
        assert len(case.data) < 32 << 20, "a case that takes long to make or to send stops all others"
    assert any(FACTS.receipt.encode() in FACTS.fill(case).data for case in cases)
    assert {case.end for case in cases} == set(End)


def test_a_saved_case_is_the_same(tmp_path: Path) -> None:
    for number in range(50):
        case = case_of(Profile.DEVELOPMENT, 3, number)
        case.save(tmp_path / "case.json")
        kept = load(tmp_path / "case.json")
        assert (kept.segments, kept.end, kept.pauses_s, kept.plain) == (
            case.segments,
            case.end,
            case.pauses_s,
            case.plain,
        )


def test_answers_are_told_apart() -> None:
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n"
    none = b"HTTP/1.1 204 No Content\r\n\r\n"
    head = b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n"
    assert parse_answers(b"HTTP/1.1 100 Continue\r\n\r\n" + one + none + one) == ([200, 204, 200], b"")
    assert parse_answers(head + one + head) == ([404, 200, 404], b""), "answers to HEAD"
    assert parse_answers(one + b"garbage") == ([200], b"garbage")
    assert parse_answers(one[:-1])[1] == b"(cut)"


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "status 500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nxx", "what was answered is not HTTP"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "statuses [503], not [200]"),
    ],
)
def test_a_wrong_answer_is_a_problem(answers: bytes, problem: str) -> None:
    played = Played(Case(name="one", segments=(b"",), statuses=(200,)), 0.0)
    Player._judge(played, answers)
    assert played.problems[0].startswith(problem) if problem else not played.problems


class FaultyAsker:
    """Answers the canary as a server would that loses, doubles or invents a message."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._bodies: list[str] = []
        self.sends = 0
        self.enough = asyncio.Event()

    async def good(self, method: str, path: str, body: Any = None) -> Any:
        if path.endswith(":batch"):
            self.sends += 1
            if self.sends == 3:
                self.enough.set()
            self._bodies += [message["body"] for message in body["messages"]]
            if self._fault == "lost":
                self._bodies = self._bodies[1:]
            elif self._fault == "twice":
                self._bodies.append(self._bodies[0])
            elif self._fault == "invented":
                self._bodies.append("never sent")
        if path.endswith(":receive"):
            taken, self._bodies = self._bodies[:10], self._bodies[10:]
            return {"messages": [{"body": text, "receiptHandle": text} for text in taken]}
        return {}

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("fault", "problem"),
    [("", ""), ("lost", "were lost"), ("twice", "more than once"), ("invented", "not acknowledged")],
)
def test_the_canary_notices_a_loss(fault: str, problem: str) -> None:
    canary = Canary(cast(FuzzedServer, _NoServer()))
    asker = FaultyAsker(fault)
    canary.asker = cast(Asker, asker)

    async def run() -> None:
        running = asyncio.ensure_future(canary.run())
        await asker.enough.wait()
        canary.stop()
        await running

    asyncio.run(run())
    assert any(problem in told for told in canary.problems) if problem else not canary.problems


class _NoServer:
    port = 1
    context = None
    profile = Profile.DEVELOPMENT
    key = None


def test_attacks_have_names_of_their_own() -> None:
    assert len({attack.name for attack in ATTACKS}) == len(ATTACKS)
