"""Runs `baton pipeline …` commands, one after another: a JSON line in, a JSON line out.

What runs is the command itself, from its words to its exit code, with settings of Spark's for few rows or, in the
tutorials, those that it has by itself. But the process and its Java are there already: on a page's few messages they
take as long to start as the job takes.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.support.spark import FEW_ROWS

_SETTINGS = [word for name, value in FEW_ROWS.items() for word in ("--conf", f"{name}={value}")]
# Words and quotes, and nothing that a shell would do something with: `$.` is no name.
_WORD, _QUOTED = r"[\w./:=,-]+", r"\"(?:[^\"$`\\\n!]|\$\.)*\""
_PLAIN = re.compile(rf"(baton pipeline( +({_WORD}|{_QUOTED}))+\n)+")


def plain_commands(text: str) -> list[list[str]]:
    """The words after `baton` of each command, if these are commands of the pipeline that need no shell; else none."""
    lines = re.sub(r" *\\\n *", " ", text)
    if not _PLAIN.fullmatch(lines):
        return []
    return [shlex.split(line)[1:] for line in lines.splitlines()]


class Jobs:
    """The process, started when it is first needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def run(
        self, words: list[str], directory: Path, environment: dict[str, str], *, few_rows: bool = True
    ) -> dict[str, Any]:
        if self._process is None:
            command = [sys.executable, "-m", "tests.docs.jobs"]
            pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
            root = Path(__file__).parents[2]
            self._process = subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, stderr=quiet, text=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        settings = _SETTINGS if few_rows else []
        request = {"words": [*words, *settings], "directory": str(directory), "environment": environment}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()


def main() -> None:
    from batonq.cli.main import main as baton

    # Java has the standard output of this process too, and answers must not be mixed with what it prints.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            request = json.loads(line)
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            output, errors = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                try:
                    code: Any = baton(request["words"])
                except SystemExit as ended:
                    code = ended.code
                except Exception:
                    traceback.print_exc()
                    code = 1
            answer = {"code": code, "output": output.getvalue(), "errors": errors.getvalue()}
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
