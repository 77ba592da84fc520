"""Random choices of the fuzzer. Everything that a case is made of follows from its seed and number."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import TypeVar

T = TypeVar("T")
KIB = 1024
ODD_BYTES = (
    b"\x00",
    b"\xff",
    b"\xe9",
    b"\x7f",
    b"\x0b",
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b":",
    b",",
    b";",
    b"=",
    b"&",
    b"%",
    b"%0",
    b"%00",
    b"%E9",
    b"%zz",
    b"?",
    b"#",
    b"/",
    b"//",
    b"/../",
    b"\\",
    b'"',
    b"{",
    b"}",
    b"[",
    b"\xc3\x28",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    "\u2028é\U0001f600".encode(),
)


class Chance(random.Random):
    def maybe(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, options: Sequence[tuple[float, T]]) -> T:
        """One of the options, by weight."""
        return self.choices([option for _, option in options], [weight for weight, _ in options])[0]

    def made(self, options: Sequence[tuple[float, Callable[[], T]]]) -> T:
        return self.pick(options)()

    def count(self, usual: int, most: int) -> int:
        """Mostly few; sometimes many."""
        if self.maybe(0.9):
            return self.randint(0, usual)
        return int(usual * (most / max(1, usual)) ** self.random())

    def text(self, length_max: int, letters: str = "abcdefghijklmnopqrstuvwxyz0123456789-_.") -> bytes:
        return "".join(self.choices(letters, k=self.randint(0, length_max))).encode()

    def noise(self, length_max: int) -> bytes:
        return self.randbytes(self.randint(0, length_max))

    def damaged(self, data: bytes, most: int = 4) -> bytes:
        """Bytes are changed, removed, inserted, repeated, cut off or turned around."""
        for _ in range(self.randint(1, most)):
            at = self.randint(0, len(data))
            end = min(len(data), at + self.randint(0, 30))
            kind = self.randrange(7)
            if kind == 0 and at < len(data):
                data = data[:at] + bytes([self.randrange(256)]) + data[at + 1 :]
            elif kind == 1:
                data = data[:at] + data[end:]
            elif kind == 2:
                data = data[:at] + self.choice(ODD_BYTES) + data[at:]
            elif kind == 3:
                data = data[:end] + data[at:end] * self.randint(1, 20) + data[end:]
            elif kind == 4 and self.maybe(0.3):
                data = data[:at]
            elif kind == 5:
                data = data[:at] + data[at:end][::-1] + data[end:]
            elif at < len(data):
                data = data[:at] + bytes([data[at] ^ 1 << self.randrange(8)]) + data[at + 1 :]
        return data

    def split(self, data: bytes) -> tuple[bytes, ...]:
        """The same bytes in segments."""
        kind = self.random()
        if kind < 0.4 or len(data) < 2:
            return (data,)
        if kind < 0.5 and len(data) <= 300:
            return tuple(data[at : at + 1] for at in range(len(data)))
        if kind < 0.6:
            step = self.choice((2, 7, 64, 1_000, 16_384))
            step = max(step, len(data) // 200)
            return tuple(data[at : at + step] for at in range(0, len(data), step))
        if kind < 0.7:  # between the CR and the LF
            cuts = [found.end() for found in islice(re.finditer(b"\r", data), 100)]
        else:
            cuts = sorted(self.randrange(1, len(data)) for _ in range(self.randint(1, 6)))
        edges = sorted({0, *cuts, len(data)})
        return tuple(data[begin:end] for begin, end in pairwise(edges))
