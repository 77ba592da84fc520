"""A Base that goes in parts: each tells the names of some queues, and together they tell all."""

from __future__ import annotations

import json

from batonq.core.policy import QueuePolicy
from batonq.core.records import ROW_WORDS, Type
from batonq.core.shard.machine import Shard
from batonq.log import frames
from batonq.log.frames import NO_DIGEST
from batonq.pipeline.events.names import Names, base_detail, told_by


def test_the_parts_of_a_base_tell_all_names() -> None:
    shard = Shard(0)
    shard.take_ownership(1, 1_000, 0)
    for number in range(1, 101):
        shard.set_policy(QueuePolicy(number, "tenant", f"queue-{number}"), 1_000)
    shard.begin_frame(2)
    shard.write_base(2, 2_000, 8_000)
    sealed = [shard.frame.take_finished() for _ in range(len(shard.frame.finished))]
    sealed.append((shard.frame.number, *shard.seal()))
    assert len(sealed) > 3
    names: Names = {}
    told = 0
    for number, rows, variable in sealed:
        frame = frames.build(
            cluster=1, region=0, shard=0, epoch=1, number=number, time_ms=1, previous_digest=NO_DIGEST, rows=rows,
            variable=variable,
        )  # fmt: skip
        names |= told_by(frame)
        words = frame.words()
        for at in range(0, len(words), ROW_WORDS):  # a short part shares the frame of the one before
            assert words[at] & 0xFF == Type.BASE
            offset, length = words[at + 6] & 0xFFFFFFFF, words[at + 6] >> 32
            told += len(json.loads(base_detail(frame.variable[offset : offset + length])))
    assert told == 100 and {name.name for name in names.values()} == {f"queue-{number}" for number in range(1, 101)}
