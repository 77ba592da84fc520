"""Make the client for threads from the one for asyncio: `make_sync.py [--check]`.

What each side does in its own way (sockets, batching, pauses) is written by hand in both; everything else is written
once, in batonq/client/aio, and made into batonq/client/blocking by changing words. With --check nothing is written, and
the exit code says whether anything would be.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "batonq" / "client" / "aio"
TARGET = ROOT / "src" / "batonq" / "client" / "blocking"
MODULES = ("baton.py", "calls.py", "jobs.py", "message.py", "queue.py")
HEADER = "# Made by tools/make_sync.py from {source}; change that one.\n"

# In this order; the first column is a regular expression.
WORDS = (
    (r"batonq\.client\.aio\b", "batonq.client.blocking"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncGenerator\[Message, None\]", "Generator[Message, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncTransport\b", "BlockingTransport"),
    (r"Awaitable\[((?:[^\[\]]|\[(?:[^\[\]]|\[[^\[\]]*\])*\])*)\]", r"\1"),
    (r"from collections\.abc import (.*?)Awaitable, ", r"from collections.abc import \1"),
    (r"\bmany tasks\b", "many threads"),
    (r"\bits tasks\b", "its threads"),
)


def made(source: str, name: str) -> str:
    """The text of the module for threads, formatted as the rest of the code is."""
    text = source
    for pattern, words in WORDS:
        text = re.sub(pattern, words, text)
    text = HEADER.format(source=f"batonq/client/aio/{name}") + text
    for command in (["check", "--quiet", "--fix", "--unsafe-fixes", "--select", "I,UP028"], ["format", "--quiet"]):
        ruff = [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", str(TARGET / name), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def outdated() -> dict[Path, str]:
    """The modules that are not what they would be if they were made now, with what they should be."""
    found = {}
    for name in MODULES:
        wanted = made((SOURCE / name).read_text(), name)
        target = TARGET / name
        if not target.exists() or target.read_text() != wanted:
            found[target] = wanted
    return found


def main(arguments: list[str]) -> int:
    changed = outdated()
    for path, text in changed.items():
        print(path.relative_to(ROOT))
        if "--check" not in arguments:
            path.write_text(text)
    return 1 if changed and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
