"""Run the project's checks one after another and say how long each took: `check.py all|fast|lint`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
CODE = [name for name in ("src", "tests", "tools", "bench") if (ROOT / name).is_dir()]
# The order is from quick to slow, so that a mistake shows early. A folder that is not named here runs last.
ORDER = ("core", "log", "node", "api", "golden", "property", "docs", "integration", "crash", "sim", "system")
FAST = ("core", "log", "node", "api", "golden", "property")


class Check(NamedTuple):
    name: str
    command: list[str]
    environment: dict[str, str]


class Outcome(NamedTuple):
    name: str
    seconds: float
    passed: bool


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
    profile = "fast" if fast else "full"
    return [
        Check(
            f"tests/{name}",
            [sys.executable, "-m", "pytest", "-q", f"tests/{name}"],
            {"BATON_TEST_PROFILE": profile},
        )
        for name in suites()
        if not fast or name in FAST
    ]


def run(check: Check) -> Outcome:
    print(f"== {check.name}", flush=True)
    started = time.monotonic()
    result = subprocess.run(check.command, cwd=ROOT, env={**os.environ, **check.environment}, check=False)
    return Outcome(check.name, time.monotonic() - started, result.returncode == 0)


def report(outcomes: list[Outcome]) -> None:
    print()
    for outcome in outcomes:
        print(f"{outcome.seconds:8.1f} s  {'ok    ' if outcome.passed else 'FAILED'}  {outcome.name}")
    print(f"{sum(outcome.seconds for outcome in outcomes):8.1f} s  in all")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in ("all", "fast", "lint"):
        print(__doc__, file=sys.stderr)
        return 2
    checks = static_checks()
    if arguments[0] != "lint":
        checks += test_checks(fast=arguments[0] == "fast")
    outcomes = [run(check) for check in checks]
    report(outcomes)
    return 0 if all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
