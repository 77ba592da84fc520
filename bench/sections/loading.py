"""The cost of importing the client: the time, and the number of packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires

from bench.context import Context
from bench.report import Sample

_IMPORT_MAX_MS = 150
_PROGRAM = """
import time
wall, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - wall, time.process_time() - cpu)
"""


@dataclass(slots=True)
class _Line:
    name: str


def dependencies() -> list[str]:
    """The dependencies of `pip install batonq`, without extras."""
    return [line for line in requires("batonq") or [] if "extra ==" not in line]


def loading(context: Context) -> None:
    """Fresh interpreters that import the client, compared with one that imports asyncio."""

    def measure(line: _Line) -> Sample:
        program = [sys.executable, "-c", _PROGRAM.format(line.name)]
        wall_s, cpu_s = subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()
        return {"ms": float(wall_s) * 1000, "CPU ms": float(cpu_s) * 1000}

    lines = ("import asyncio", "import batonq", "from batonq import Baton", "from batonq import Worker")
    samples = context.interleave([_Line(line) for line in lines], measure)
    table = context.report.table("loading", "a fresh interpreter's import", samples, "CPU ms")
    for line in lines[1:3]:
        context.report.bar("loading", f"{line}, CPU ms", table.median(line, "CPU ms"), _IMPORT_MAX_MS, at_least=False)
    found = dependencies()
    context.report.note(f"dependencies of the client: {len(found)} ({', '.join(found)})")
