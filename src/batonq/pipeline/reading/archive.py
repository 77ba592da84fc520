"""An archive of logs: sealed segments, each with a manifest that describes it and is written last.

    URL/shard-0000/segment-<first frame>-<last frame>.log     the frames as stored in the log
    URL/shard-0000/manifest-<first frame>.json

A segment without a manifest does not count: an interrupted copy is repeated. Everything that is read is checked against
its manifest, frame by frame, and against the frames before it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from batonq.errors import LogCorrupt, LogGap
from batonq.log.frames import Frame
from batonq.log.reading import Chain, frames_of
from batonq.pipeline.events.names import Names, QueueNames, told_by
from batonq.pipeline.reading.stores import Store

VERSION = 1
_SHARD = re.compile(r"shard-([0-9]{4,5})")
_MANIFEST = re.compile(r"manifest-([0-9]{20})\.json")


@dataclass(slots=True, frozen=True)
class Manifest:
    """One segment of the archive: frames `first` to `last`, and how to verify them."""

    version: int
    cluster: str
    shard: int
    first: int
    last: int
    previous_digest: str  # the digest in the first frame
    last_digest: str
    first_time_ms: int
    last_time_ms: int
    size_bytes: int
    sha256: str
    names: Names | None = None  # of queues in these frames; None: written by an older release

    @property
    def name(self) -> str:
        return f"{folder(self.shard)}/segment-{self.first:020}-{self.last:020}.log"

    @property
    def manifest_name(self) -> str:
        return f"{folder(self.shard)}/manifest-{self.first:020}.json"

    def encode(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode() + b"\n"


def folder(shard: int) -> str:
    return f"shard-{shard:04}"


def describe(data: bytes, shard: int, cluster: int, first: int, where: str) -> Manifest:
    """The manifest of a segment's frames, all of which are checked. Raises LogCorrupt."""
    chain = Chain(shard, cluster, first)
    head = last = None
    names: Names = {}
    for frame in frames_of(data, chain, where):
        head, last = head or frame, frame
        names |= told_by(frame)
    if head is None or last is None:
        raise LogCorrupt(f"{where}: there are no frames")
    return Manifest(
        version=VERSION,
        cluster=f"{cluster:016x}",
        shard=shard,
        first=first,
        last=last.number,
        previous_digest=head.previous_digest.hex(),
        last_digest=last.digest.hex(),
        first_time_ms=head.time_ms,
        last_time_ms=last.time_ms,
        size_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        names=names,
    )


class Archive:
    def __init__(self, store: Store) -> None:
        self.store = store

    @classmethod
    def at(cls, url: str) -> Archive:
        return cls(Store(url))

    def shards(self) -> list[int]:
        return sorted(int(match[1]) for match in map(_SHARD.fullmatch, self.store.names()) if match)

    def firsts(self, shard: int) -> list[int]:
        """The first frames of the segments with a manifest, in order."""
        found = map(_MANIFEST.fullmatch, self.store.names(folder(shard)))
        return sorted(int(match[1]) for match in found if match)

    def manifest(self, shard: int, first: int) -> Manifest:
        """Raises LogCorrupt if it is damaged, or has an unsupported version."""
        name = f"{folder(shard)}/manifest-{first:020}.json"
        where = self.store.address(name)
        data = self.store.read(name)
        try:
            values = json.loads(data)
            version = values["version"]
        except (ValueError, KeyError, TypeError):
            raise LogCorrupt(f"{where} is damaged: it is not a manifest. {_ADVICE}") from None
        if version != VERSION:
            raise LogCorrupt(f"{where} has version {version}, but this release supports {VERSION}: use a newer release")
        try:
            fields = {field: values[field] for field in Manifest.__dataclass_fields__ if field != "names"}
            found = Manifest(**fields, names=_names(values.get("names")))
        except KeyError as missing:
            raise LogCorrupt(f"{where} is damaged: {missing} is missing. {_ADVICE}") from None
        except (TypeError, ValueError, AttributeError):
            raise LogCorrupt(f"{where} is damaged: its names cannot be read. {_ADVICE}") from None
        if (found.shard, found.first) != (shard, first):
            raise LogCorrupt(f"{where} belongs to shard {found.shard}, frame {found.first}. {_ADVICE}")
        return found

    def manifests(self, shard: int) -> list[Manifest]:
        return [self.manifest(shard, first) for first in self.firsts(shard)]

    def write(self, manifest: Manifest, data: bytes) -> None:
        """Write the segment, then its manifest."""
        self.store.write(manifest.name, data)
        self.store.write(manifest.manifest_name, manifest.encode())

    def write_new(self, manifest: Manifest, data: bytes) -> bool:
        """The same, unless another process was faster: then False, and its data counts."""
        self.store.write(manifest.name, data)
        return self.store.write_new(manifest.manifest_name, manifest.encode())

    def segment(self, manifest: Manifest) -> bytes:
        """A segment's bytes, checked. Raises LogCorrupt, LogError."""
        where = self.store.address(manifest.name)
        data = self.store.read(manifest.name)
        if len(data) != manifest.size_bytes:
            raise LogCorrupt(f"{where} has {len(data)} bytes, but its manifest says {manifest.size_bytes}. {_ADVICE}")
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise LogCorrupt(f"{where} is damaged: it does not match its checksum. {_ADVICE}")
        return data

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        """Frames from `start` up to `stop` (exclusive; default: all). Raises LogGap, LogCorrupt."""
        chain: Chain | None = None
        firsts = self.firsts(shard)
        begin = max(sum(first <= start for first in firsts) - 1, 0)
        for first in firsts[begin:]:
            if stop is not None and first >= stop:
                return
            expected = start if chain is None else chain.number
            if first > expected:
                raise LogGap(
                    f"Frames {expected} to {first - 1} of shard {shard} are not in the archive {self.store.url}."
                )
            manifest = self.manifest(shard, first)
            if manifest.last < expected:
                continue
            if chain is None:
                chain = Chain(shard, int(manifest.cluster, 16), first)
                chain.digest = bytes.fromhex(manifest.previous_digest)
            where = self.store.address(manifest.name)
            if first != chain.number:
                raise LogCorrupt(
                    f"{where} begins before frame {chain.number}, where the previous segment ends. {_ADVICE}"
                )
            for frame in frames_of(self.segment(manifest), chain, where):
                if stop is not None and frame.number >= stop:
                    return
                if frame.number >= start:
                    yield frame
            if chain.number != manifest.last + 1:
                raise LogCorrupt(f"{where} ends with frame {chain.number - 1}, not {manifest.last}. {_ADVICE}")
        if chain is None and firsts and start < firsts[0]:
            raise LogGap(f"Frame {start} of shard {shard} is not in the archive {self.store.url}.")


_ADVICE = "Restore it from a copy; Baton does not skip it."


def _names(given: Any) -> Names | None:
    return None if given is None else {int(queue): QueueNames(*names) for queue, names in given.items()}
