"""Named byte sections in one byte string: the encoding of a Base and of a snapshot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def pack(sections: Mapping[str, bytes]) -> bytes:
    index = json.dumps([[name, len(data)] for name, data in sections.items()], separators=(",", ":")).encode()
    return b"".join((len(index).to_bytes(4, "little"), index, *sections.values()))


def pack_in_parts(items: Sequence[bytes], rest: bytes, part_bytes: int) -> list[bytes]:
    """Pack JSON values and further bytes into parts of about `part_bytes` bytes. Each part is packed on its own.

    In each part `items` is a list of whole values, and `rest` a slice of the bytes.
    """
    parts: list[bytes] = []
    at = start = 0
    while at < len(items) or start < len(rest) or not parts:
        taken: list[bytes] = []
        room = part_bytes
        while at < len(items) and (room >= len(items[at]) or not taken):
            taken.append(items[at])
            room -= len(items[at]) + 1
            at += 1
        stretch = rest[start : start + max(room, 0)] if at == len(items) else b""
        start += len(stretch)
        parts.append(pack({"items": b"[" + b",".join(taken) + b"]", "rest": stretch}))
    return parts


def unpack_parts(parts: Iterable[bytes]) -> tuple[list[Any], bytes]:
    """All items, and all further bytes."""
    items: list[Any] = []
    rest: list[bytes] = []
    for part in map(unpack, parts):
        items += json.loads(part["items"])
        rest.append(part["rest"])
    return items, b"".join(rest)


def unpack(data: bytes) -> dict[str, bytes]:
    length = int.from_bytes(data[:4], "little")
    at = 4 + length
    sections = {}
    for name, size in json.loads(data[4:at]):
        sections[name] = data[at : at + size]
        at += size
    return sections


def prefixed(prefix: str, sections: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{prefix}.{name}": data for name, data in sections.items()}


def with_prefix(prefix: str, sections: Mapping[str, bytes]) -> dict[str, bytes]:
    start = prefix + "."
    return {name[len(start) :]: data for name, data in sections.items() if name.startswith(start)}
