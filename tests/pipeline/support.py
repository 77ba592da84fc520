"""Histories to read, and the two decoders side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from batonq.core.records import Type
from batonq.log.frames import NO_DIGEST, Frame, build
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.names import Names
from batonq.pipeline.events.plain import events
from batonq.pipeline.events.schema import arrow_schema
from tests.core.rig import Rig, SealedFrame

CLUSTER = 7


def sealed(frames: Iterable[SealedFrame], shard: int) -> list[Frame]:
    """A rig's frames as a log has them. The first names the digest of a frame that is not there any more."""
    previous = NO_DIGEST
    result: list[Frame] = []
    for frame in frames:
        epoch = next(
            (row.sequence for row in frame.rows() if row.type == Type.EPOCH), result[-1].epoch if result else 1
        )
        built = build(
            cluster=CLUSTER,
            region=3,
            shard=shard,
            epoch=epoch,
            number=frame.number,
            time_ms=frame.rows()[-1].time,
            previous_digest=previous,
            rows=frame.words.tobytes(),
            variable=frame.variable,
        )
        previous = built.digest
        result.append(built)
    return result


def frames_of(rig: Rig) -> list[Frame]:
    rig.commit()
    return sealed((rig.frames[number] for number in sorted(rig.frames)), rig.number)


def assert_same(frames: Sequence[Frame], *, wanted: Filter | None = None, at_once: int = 0) -> pa.RecordBatch:
    """Both decoders give the same rows, bodies and all; `at_once` frames a batch, or all together."""
    plain = plain_batch(frames, wanted=wanted)
    decoder = Decoder(bodies=True, wanted=wanted, dictionaries=False)
    size = at_once or max(len(frames), 1)
    groups = [frames[at : at + size] for at in range(0, len(frames), size)]
    table = pa.Table.from_batches([decoder.decode(group) for group in groups], decoder.schema)
    table.validate(full=True)
    if not table.equals(pa.Table.from_batches([plain], plain.schema)):
        raise AssertionError(_difference(plain.to_pylist(), table.to_pylist()))
    coded = Decoder(bodies=True, wanted=wanted)
    again = pa.Table.from_batches([coded.decode(group) for group in groups], coded.schema)
    assert again.cast(decoder.schema).equals(table)
    return plain


def plain_batch(frames: Sequence[Frame], *, wanted: Filter | None = None, names: Names | None = None) -> pa.RecordBatch:
    rows = list(events(frames, bodies=True, wanted=wanted, names=names))
    return pa.RecordBatch.from_pylist(rows, arrow_schema(bodies=True, dictionaries=False))


def _difference(plain: list[dict[str, Any]], decoded: list[dict[str, Any]]) -> str:
    if len(plain) != len(decoded):
        return f"{len(plain)} rows by the plain loop, {len(decoded)} decoded"
    for one, other in zip(plain, decoded, strict=True):
        for name, value in one.items():
            if value != other[name]:
                return f"{one['event']} {one['frame']}:{one['row']} {name}: plain {value!r}, decoded {other[name]!r}"
    return "the same values, another form"
