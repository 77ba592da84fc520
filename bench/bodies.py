"""Message bodies: plain text of a given size, and a realistic mix of sizes."""

from __future__ import annotations

import math
import random
import string

KIB = 1024
_LETTERS = string.ascii_letters + string.digits + " .,-"
_MEDIAN_BYTES = 2 * KIB
_SIGMA = 1.26  # so that nineteen of twenty are under 16 KiB
_LARGEST_BYTES = 256 * KIB
_LARGEST_EVERY = 200


def text(size: int, seed: int = 0) -> str:
    return "".join(random.Random(seed * 1_000_003 + size).choices(_LETTERS, k=size))


def texts(count: int, size: int = KIB) -> list[str]:
    return [text(size, seed) for seed in range(count)]


def mixed(count: int) -> list[str]:
    """Bodies with a median of 2 KiB, most of them under 16 KiB, one in two hundred of 256 KiB."""
    generator = random.Random(7)
    long_text = text(_LARGEST_BYTES)
    result = []
    for place in range(count):
        size = min(int(generator.lognormvariate(math.log(_MEDIAN_BYTES), _SIGMA)) + 1, _LARGEST_BYTES)
        if place % _LARGEST_EVERY == _LARGEST_EVERY - 1:
            size = _LARGEST_BYTES
        start = generator.randrange(_LARGEST_BYTES - size + 1)
        result.append(long_text[start : start + size])
    return result


def batches(bodies: list[str], batch: int = 10, bytes_max: int = 1_000_000) -> list[list[str]]:
    """Split a list of bodies into batches within SQS's limits."""
    result: list[list[str]] = [[]]
    size = 0
    for body in bodies:
        if len(result[-1]) == batch or size + len(body) > bytes_max:
            result.append([])
            size = 0
        result[-1].append(body)
        size += len(body)
    return result
