"""Message bodies: JSON documents, plain and UTF-8 text, and a realistic mix of sizes."""

from __future__ import annotations

import json
import math
import random
import string

KIB = 1024
_LETTERS = string.ascii_letters + string.digits + " .,-"
_UTF8_LETTERS = "abcdefghijklmnopqrstuvwxyz äöüßéèñçøåЖдяλπ中文字符"
_MEDIAN_BYTES = 2 * KIB
_SIGMA = 1.26  # so that nineteen of twenty are under 16 KiB
_LARGEST_BYTES = 256 * KIB
_LARGEST_EVERY = 200


def text(size: int, seed: int = 0) -> str:
    return "".join(random.Random(seed * 1_000_003 + size).choices(_LETTERS, k=size))


def texts(count: int, size: int = KIB) -> list[str]:
    return [text(size, seed) for seed in range(count)]


def documents(count: int, size: int = KIB) -> list[str]:
    """JSON documents of about this size, as services send them to each other."""
    return [_document(size, seed) for seed in range(count)]


def _document(size: int, seed: int) -> str:
    dice = random.Random(seed)
    items = [
        {"sku": f"SKU-{dice.randrange(10**6):06d}", "quantity": dice.randrange(1, 9), "price": dice.random() * 100}
        for _ in range(9)
    ]
    order = {"type": "order.created", "orderId": f"{dice.randrange(10**12):012d}", "items": items, "note": ""}
    order["note"] = text(size, seed)[: max(0, size - len(json.dumps(order)))]
    return json.dumps(order)


def utf8_texts(count: int, size: int = KIB) -> list[str]:
    """Text of about this many bytes, two fifths of the characters outside ASCII."""
    return ["".join(random.Random(seed).choices(_UTF8_LETTERS, k=size * 2 // 3)) for seed in range(count)]


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
