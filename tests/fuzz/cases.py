"""One case of the fuzzer: the bytes of one connection, in segments, and how the connection ends."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

SHOWN_BYTES_MAX = 4_096
ATTACKER = "127.0.0.1"


class End(StrEnum):
    """What the client does after its last byte."""

    HALF_CLOSE = "half-close"  # it has said all, and reads to the end
    OPEN = "open"  # it reads until nothing more comes, then closes
    RESET = "reset"  # it closes at once without reading, with a TCP reset
    STALL = "stall"  # it leaves the connection open until the run needs the place


@dataclass(slots=True, frozen=True, kw_only=True)
class Case:
    name: str
    segments: tuple[bytes, ...]
    end: End = End.HALF_CLOSE
    pauses_s: tuple[float, ...] = ()  # after each segment; () for none
    plain: bool = False  # without TLS, whatever the server speaks
    reads: bool = True  # what is answered, while it sends
    address: str = ATTACKER  # where it comes from
    # What a connection that is read to its end must have been answered, where that is known.
    statuses: tuple[int, ...] | None = None

    @property
    def data(self) -> bytes:
        return b"".join(self.segments)

    def whole(self) -> Case:
        """The same bytes in one segment."""
        return replace(self, segments=(self.data,), pauses_s=())

    def show(self) -> str:
        """The exact bytes as Python literals. Long cases are cut; `save` keeps all of them."""
        lines = [f"{self.name}, {len(self.data):,} bytes in {len(self.segments)} segments, then {self.end}"]
        left = SHOWN_BYTES_MAX
        for segment in self.segments:
            if left <= 0:
                lines.append("  … (cut)")
                break
            cut = f" … and {len(segment) - left:,} bytes more" if len(segment) > left else ""
            lines.append(f"  {segment[:left]!r}{cut}")
            left -= len(segment) + 16
        return "\n".join(lines)

    def save(self, path: Path) -> None:
        path.write_text(
            json.dumps(
                {
                    "name": self.name,
                    "segments": [base64.b64encode(segment).decode() for segment in self.segments],
                    "end": self.end,
                    "pauses_s": self.pauses_s,
                    "plain": self.plain,
                }
            )
        )


def load(path: Path) -> Case:
    kept: dict[str, Any] = json.loads(path.read_text())
    return Case(
        name=kept["name"],
        segments=tuple(base64.b64decode(segment) for segment in kept["segments"]),
        end=End(kept["end"]),
        pauses_s=tuple(kept["pauses_s"]),
        plain=kept["plain"],
    )
