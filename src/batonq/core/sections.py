"""Named byte sections in one piece of bytes: how a Base and a snapshot are put together."""

from __future__ import annotations

import json
from collections.abc import Mapping


def pack(sections: Mapping[str, bytes]) -> bytes:
    index = json.dumps([[name, len(data)] for name, data in sections.items()], separators=(",", ":")).encode()
    return b"".join((len(index).to_bytes(4, "little"), index, *sections.values()))


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
