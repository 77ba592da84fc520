"""Scenarios as readable files: blocks of commands, `----`, and the full trace of what they did.

A file is run from top to bottom; each block's trace must be what stands below its line. `python -m tests.golden.runner
--rewrite [file …]` writes the traces anew: read every line of the difference before you keep it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.golden.script import Scenario

FOLDER = Path(__file__).parent
LINE = "----"


class Block(NamedTuple):
    comments: list[str]
    commands: list[str]
    trace: list[str]


def scenarios() -> list[Path]:
    return sorted(FOLDER.glob("*.txt"))


def parse(text: str) -> Iterator[Block]:
    for paragraph in text.strip("\n").split("\n\n"):
        lines = paragraph.strip("\n").split("\n")
        if LINE not in lines:
            assert all(line.startswith("#") for line in lines), f"no {LINE} below: {lines}"
            yield Block(lines, [], [])
            continue
        at = lines.index(LINE)
        head = lines[:at]
        comments = [line for line in head if line.startswith("#")]
        yield Block(comments, [line for line in head if not line.startswith("#")], lines[at + 1 :])


def played(text: str) -> str:
    """The same scenario with the traces that it gives now."""
    scenario = Scenario()
    paragraphs = []
    for block in parse(text):
        if not block.commands:
            paragraphs.append("\n".join(block.comments))
            continue
        trace = [line for command in block.commands for line in scenario.run(command)]
        paragraphs.append("\n".join([*block.comments, *block.commands, LINE, *trace]))
    return "\n\n".join(paragraphs) + "\n"


def main(arguments: list[str]) -> int:
    files = [Path(name) for name in arguments if name != "--rewrite"] or scenarios()
    changed = [path for path in files if played(path.read_text()) != path.read_text()]
    for path in changed:
        print(f"{path.name} differs" + (", written anew" if "--rewrite" in arguments else ""))
        if "--rewrite" in arguments:
            path.write_text(played(path.read_text()))
    return 1 if changed and "--rewrite" not in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
