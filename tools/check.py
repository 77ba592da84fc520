"""Run the project's checks and say how long each took: `check.py all|fast|lint`.

The suites of tests run side by side, one a processor (JOBS=1 for one after another); what a suite printed is shown
when it has ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CODE = [name for name in ("src", "tests", "tools", "bench", "examples") if (ROOT / name).is_dir()]
JOBS = int(os.environ.get("JOBS", "0")) or min(4, os.cpu_count() or 1)
# The longest first, so that no processor is idle at the end. A folder that is not named here runs last.
ORDER = (
    "pipeline",
    "core",
    "sim",
    "docs",
    "outbox",
    "log",
    "system",
    "rest",
    "idempotency",
    "api",
    "client",
    "node",
    "golden",
)
FAST = ("core", "sim", "log", "node", "api", "golden", "client")


class Check(NamedTuple):
    name: str
    command: list[str]
    environment: dict[str, str]


class Outcome(NamedTuple):
    name: str
    seconds: float
    code: int  # of the process: 0 passed, negative the signal that ended it

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
    """The folders of tests/ that hold tests, in the order to run them."""
    found = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    loose = sorted(name for name in found if name.endswith(".py"))
    assert not loose, f"a test belongs into a suite's folder: {loose}"
    return sorted(found, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))


def test_checks(fast: bool) -> list[Check]:
    pytest = [sys.executable, "-m", "pytest", "-q", *(["-m", "fast"] if fast else [])]
    environment = {"BATON_TEST_PROFILE": "fast" if fast else "full"}
    names = [name for name in suites() if not fast or name in FAST]
    return [Check(f"tests/{name}", [*pytest, f"tests/{name}"], environment) for name in names]


def run(check: Check, *, captured: bool) -> Outcome:
    print(f"== {check.name}", flush=True)
    started = time.monotonic()
    result = subprocess.run(
        check.command,
        cwd=ROOT,
        env={**os.environ, **check.environment},
        stdout=subprocess.PIPE if captured else None,
        stderr=subprocess.STDOUT if captured else None,
        text=True,
        check=False,
    )
    if captured:
        print(f"-- {check.name}\n{result.stdout}", flush=True)
    return Outcome(check.name, time.monotonic() - started, result.returncode)


def run_side_by_side(checks: list[Check]) -> list[Outcome]:
    with ThreadPoolExecutor(JOBS) as pool:
        running = [pool.submit(run, check, captured=JOBS > 1) for check in checks]
        return [future.result() for future in as_completed(running)]


def report(outcomes: list[Outcome], seconds: float) -> None:
    print()
    for outcome in outcomes:
        print(f"{outcome.seconds:8.1f} s  {outcome.verdict:6}  {outcome.name}")
    print(f"{seconds:8.1f} s  in all")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ("all", "fast", "lint"):
        print(__doc__, file=sys.stderr)
        return 2
    started = time.monotonic()
    outcomes = [run(check, captured=False) for check in static_checks()]
    if arguments[0] != "lint":
        outcomes += run_side_by_side(test_checks(fast=arguments[0] == "fast"))
    report(outcomes, time.monotonic() - started)
    return 0 if not any(outcome.code for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
