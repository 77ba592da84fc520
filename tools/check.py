"""Run the project's checks and print how long each took: `check.py all|fast|lint`.

They run in parallel, one per processor. The test suites that mostly wait for processes run next to them, two at a time,
and the last of them where a processor has no other work (JOBS=1: everything one after another). The output of a check
is shown when it has ended. A check that takes far too long is aborted, and shows where it was.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.browser import find_browser, install_browser, why_missing  # noqa: E402

BIN = Path(sys.executable).parent
CODE = [name for name in ("src", "tests", "tools", "bench", "campaign", "sim", "examples") if (ROOT / name).is_dir()]
JOBS = int(os.environ.get("JOBS", "0")) or min(4, os.cpu_count() or 1)
WAITING_JOBS = 2  # beside them, for suites that are idle for much of their time
# The longest first, so that no processor is idle at the end. A folder that is not listed runs last.
ORDER = (
    "pipeline",
    "core",
    "docs",
    "sim",
    "cluster",
    "campaign",
    "processes",
    "system",
    "worker",
    "ui",
    "log",
    "client",
    "rest",
    "api",
    "outbox",
    "fuzz",
    "cli",
    "idempotency",
    "node",
    "golden",
)
# They are idle for much of their time: they have places of their own.
WAITING = (
    "cluster",
    "campaign",
    "processes",
    "system",
    "worker",
    "log",
    "client",
    "api",
    "outbox",
    "cli",
    "idempotency",
)
SECONDS_MAX = 7_200  # per check, on a busy machine: it ends what hangs, and measures nothing
# Tests start hundreds of processes: each would compile all of Baton if the shell forbids writing bytecode.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
FAST = ("core", "sim", "log", "node", "api", "golden", "client")
FAILURES_SHOWN_MAX = 20  # per check, at the end
FAST_WAITING = ("log", "client")  # of these, so that all places have equal work


groups: set[int] = set()  # process groups of the running checks


class Check(NamedTuple):
    name: str
    command: list[str]
    environment: dict[str, str]
    waits: bool = False  # waits more than it works


class Outcome(NamedTuple):
    name: str
    seconds: float
    code: int  # of the process: 0 passed, negative the signal that ended it
    failures: tuple[str, ...] = ()  # the failed tests, if known

    @property
    def verdict(self) -> str:
        if self.code < 0:
            return f"KILLED by signal {-self.code}"
        return "FAILED" if self.code else "ok"


def static_checks() -> list[Check]:
    return [
        Check("ruff", [str(BIN / "ruff"), "check", "--quiet", *CODE], {}),
        Check("format", [str(BIN / "ruff"), "format", "--quiet", "--check", *CODE], {}),
        Check("mypy", [str(BIN / "mypy"), *CODE], {}),
        Check("import contracts", [str(BIN / "lint-imports"), "--no-logo"], {}),
    ]


def suites() -> list[str]:
    """The folders of tests/ with tests, in the order to run them."""
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    loose = sorted(name for name in found if name.endswith(".py"))
    assert not loose, f"a test must be in the folder of a suite: {loose}"
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def test_checks(fast: bool) -> list[Check]:
    slowest = ["--durations=8", "--durations-min=5"]  # shows what to shorten
    pytest = [sys.executable, "-m", "pytest", "-q", *slowest, *(["-m", "fast"] if fast else [])]
    environment = {"BATON_TEST_PROFILE": "fast" if fast else "full"}
    names = [name for name in suites() if not fast or name in FAST]
    waiting = FAST_WAITING if fast else WAITING
    return [Check(f"tests/{name}", [*pytest, f"tests/{name}"], environment, name in waiting) for name in names]


def run(check: Check, *, captured: bool) -> Outcome:
    print(f"== {check.name}", flush=True)
    started = time.monotonic()
    process = subprocess.Popen(
        check.command,
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONFAULTHANDLER": "1", **check.environment},
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        process_group=0,
    )
    groups.add(process.pid)
    try:
        output, _ = process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        print(f"-- {check.name} has not ended after {SECONDS_MAX} s: aborted", flush=True)
        process.send_signal(signal.SIGABRT)  # faulthandler prints the position of each thread
        try:
            output, _ = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:  # a child process still has its output open
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
    finally:
        groups.discard(process.pid)
        end_group(process.pid)
    if captured:
        print(f"-- {check.name}\n{output}", flush=True)
    return Outcome(check.name, time.monotonic() - started, process.returncode, failures_in(output or ""))


def failures_in(output: str) -> tuple[str, ...]:
    """The lines of pytest's summary that name a test."""
    return tuple(line for line in output.splitlines() if line.startswith(("FAILED tests/", "ERROR tests/")))


def end_group(group: int) -> None:
    """Kill everything that a check has started."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_side_by_side(checks: list[Check]) -> list[Outcome]:
    todo = {waits: deque(check for check in checks if check.waits == waits) for waits in (False, True)}
    lanes = [False] * JOBS + [True] * (WAITING_JOBS if JOBS > 1 else 0)
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = [pool.submit(run_lane, waits, todo) for waits in lanes]
        try:
            return [outcome for future in as_completed(running) for outcome in future.result()]
        except KeyboardInterrupt:
            for left in todo.values():
                left.clear()
            for group in tuple(groups):
                end_group(group)
            raise


def run_lane(waits: bool, todo: dict[bool, deque[Check]]) -> list[Outcome]:
    """Run one check after another. A lane that has worked off its own helps with those that wait, from their end."""
    outcomes: list[Outcome] = []
    takes = [todo[waits].popleft, *([] if waits else [todo[True].pop])]
    while takes:
        try:
            check = takes[0]()
        except IndexError:
            takes.pop(0)
        else:
            outcomes.append(run(check, captured=JOBS > 1))
    return outcomes


def report(outcomes: list[Outcome], seconds: float) -> None:
    print()
    for outcome in outcomes:
        print(f"{outcome.seconds:8.1f} s  {outcome.verdict:6}  {outcome.name}")
    print(f"{seconds:8.1f} s in total")
    for outcome in outcomes:
        if outcome.code:
            print(f"\n{outcome.name}: {outcome.verdict}; its output is above, after `-- {outcome.name}`")
            for line in outcome.failures[:FAILURES_SHOWN_MAX]:
                print(f"  {line}")
    if any(outcome.name == "tests/ui" for outcome in outcomes) and find_browser() is None:
        print(f"\nThe tests of the dashboard (tests/ui) were SKIPPED: {why_missing()}.")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ("all", "fast", "lint"):
        print(__doc__, file=sys.stderr)
        return 2
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # even if the shell ignores them: tests send them to their child processes
        signal.signal(number, signal.default_int_handler)
    if arguments[0] == "all" and find_browser() is None:
        install_browser()
    started = time.monotonic()
    checks = static_checks()
    if arguments[0] != "lint":
        checks += test_checks(fast=arguments[0] == "fast")
    outcomes = run_side_by_side(checks)
    report(outcomes, time.monotonic() - started)
    return 0 if not any(outcome.code for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
