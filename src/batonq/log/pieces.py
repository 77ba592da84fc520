"""A run of frames in one buffer, as in a segment or in history responses: parsed and checked."""

from __future__ import annotations

from collections.abc import Iterator

from batonq.errors import LogCorrupt
from batonq.log.frames import Frame, parse
from batonq.log.reading import Chain


def frames_of(data: bytes, chain: Chain, where: str) -> Iterator[Frame]:
    """Every frame in `data`, each checked by itself and against the one before; `chain` is advanced.

    Raises LogCorrupt with the location (a file, a URL) and the reason.
    """
    at = 0
    while at < len(data):
        try:
            frame = parse(data, at)
        except LogCorrupt as error:
            raise LogCorrupt(f"{where}, offset {at}: {error.message}") from None
        wrong = chain.mismatch(frame)
        if wrong is not None:
            raise LogCorrupt(f"{where}, offset {at}: {wrong}")
        chain.cluster, chain.digest, chain.epoch = frame.cluster, frame.digest, frame.epoch
        chain.number = frame.number + 1
        yield frame
        at += frame.size
