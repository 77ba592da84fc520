"""`baton log archive`: show the content of a history archive and check whether it is complete."""

from __future__ import annotations

import argparse
import json
from typing import Any

from batonq.errors import BatonError, InvalidInput
from batonq.quantities import plural


def run(arguments: argparse.Namespace) -> int:
    try:
        from batonq.pipeline.reading.archive import Archive
    except ImportError as missing:
        raise InvalidInput(f"This needs the package {missing.name}: pip install 'batonq[spark]'.") from None
    archive = Archive.at(arguments.address)
    shards = archive.shards() if arguments.shard is None else [arguments.shard]
    if not shards or (arguments.shard is not None and not archive.firsts(arguments.shard)):
        raise InvalidInput(
            f"{arguments.address} contains no shard{'' if arguments.shard is None else f' {shards[0]}'}."
        )
    code = 0
    for shard in shards:
        found = _look(archive, shard, verify=arguments.verify)
        code = code or int(bool(found["problems"]))
        print(json.dumps(found) if arguments.json else _text(found), flush=True)
    return code


def _look(archive: Any, shard: int, *, verify: bool) -> dict[str, Any]:
    """Report every problem and continue after it."""
    problems: list[str] = []
    segments = size = first = following = 0
    for number in archive.firsts(shard):
        if following and number != following:
            problems.append(f"frames {following} to {number - 1} are missing")
        try:
            manifest = archive.manifest(shard, number)
            following = manifest.last + 1
            if verify:
                for _ in archive.frames(shard, number, following):
                    pass
        except BatonError as problem:
            problems.append(problem.message)
            continue
        first, segments, size = first or number, segments + 1, size + manifest.size_bytes
    return {
        "shard": shard,
        "firstFrame": first,
        "lastFrame": following - 1,
        "segments": segments,
        "bytes": size,
        "verified": verify,
        "problems": problems,
    }


def _text(found: dict[str, Any]) -> str:
    checked = "all segments checked" if found["verified"] else "manifests checked"
    line = (
        f"shard {found['shard']}: frames {found['firstFrame']} to {found['lastFrame']}, "
        f"{plural(found['segments'], 'segment')}, {found['bytes']} bytes ({checked})"
    )
    return "\n".join([line, *(f"  DAMAGED {problem}" for problem in found["problems"])])
