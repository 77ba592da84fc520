"""The messages of PostgreSQL's replication, one by one."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from batonq.errors import InvalidInput
from batonq.outbox.pgoutput import Decoder, Snapshot, prepare


def relation(number: int, *columns: str) -> bytes:
    described = b"".join(b"\0" + name.encode() + b"\0" + struct.pack(">Ii", 25, -1) for name in columns)
    return b"R" + struct.pack(">I", number) + b"public\0outbox\0d" + struct.pack(">H", len(columns)) + described


def inserted(number: int, *values: bytes | None) -> bytes:
    told = b"".join(b"n" if value is None else b"t" + struct.pack(">I", len(value)) + value for value in values)
    return b"I" + struct.pack(">I", number) + b"N" + struct.pack(">H", len(values)) + told


def test_ids_of_committed_transactions_wherever_the_column_stands() -> None:
    decoder = Decoder("id")
    begin = b"B" + struct.pack(">QQI", 0, 0, 740)
    for message in (begin, relation(7, "queue", "key", "id"), relation(8, "id")):
        assert decoder.feed(message) is None
    began = decoder.inside
    decoder.feed(inserted(7, b"mails", None, b"41"))
    decoder.feed(b"O" + bytes(10))  # an origin, as a server tells that is a replica itself
    decoder.feed(inserted(8, b"42"))
    assert decoder.feed(b"C" + struct.pack(">BQQQ", 0, 1000, 1048, 0)) == (740, 1048, [41, 42])
    assert (began, decoder.inside) == (True, False)
    decoder.feed(begin)
    assert decoder.feed(b"C" + struct.pack(">BQQQ", 0, 2000, 2048, 0)) == (740, 2048, [])


@pytest.mark.parametrize(
    ("snapshot", "seen", "unseen"),
    [
        ("10:10:", [8, 9], [10, 11]),
        ("7:10:7,9", [6, 8], [7, 9, 10]),
        ("4294967290:4294967306:4294967292,4294967298", [4294967289, 4294967293, 1], [4294967292, 2, 10]),
        ("12884901888:12884901893:", [4294967295, 4], [5, 2_000_000_000]),
    ],
)
def test_what_a_snapshot_sees_also_when_numbers_have_gone_round(
    snapshot: str, seen: list[int], unseen: list[int]
) -> None:
    numbers = Snapshot(snapshot)
    assert [number for number in seen if not numbers.sees(number)] == []
    assert [number for number in unseen if numbers.sees(number)] == []


@pytest.mark.parametrize(("level", "slot", "text"), [("replica", None, "wal_level"), ("logical", "lost", "pg_drop")])
def test_a_server_that_cannot_is_told_what_to_do(level: str, slot: str | None, text: str) -> None:
    class Answers:
        def __init__(self, row: Any) -> None:
            self._row = row

        def fetchone(self) -> Any:
            return self._row

    class Server:
        def execute(self, sql: str, given: tuple[str, ...] = ()) -> Answers:
            if "wal_level" in sql:
                return Answers((level, 5))
            return Answers((1,) if "pg_publication" in sql else (slot,))

    with pytest.raises(InvalidInput, match=text):
        prepare(Server(), "outbox", "outbox", "id")
