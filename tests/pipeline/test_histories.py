"""The large histories of the benchmarks are histories like any other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from batonq.pipeline.reading.history import open_history
from bench import histories
from tests.pipeline.busy import kinds
from tests.pipeline.support import assert_same

EVENTS = 60_000
EXPECTED = {
    "sent",
    "leased",
    "extended",
    "deleted/ack",
    "deleted/late_ack",
    "deleted/retention",
    "returned/nack",
    "returned/expired",
    "owed/dead_letter",
    "arrived/dead_letter",
    "settled/accepted",
    "epoch",
    "policy_set",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("made") / "data")
    assert EVENTS <= histories.make(directory, EVENTS) < EVENTS * 1.1
    return directory


def test_it_is_read_like_any_other_and_has_what_happens_in_one(made: str) -> None:
    history = open_history(made)
    spans = history.shards()
    assert [span.shard for span in spans] == [0, 1]
    frames = list(history.frames(0, 1, spans[0].next))
    rows = assert_same(frames).to_pylist()
    assert kinds(rows) >= EXPECTED
    assert {row["queue_name"] for row in rows} >= {"jobs-0", "mail-0", "ledger-0.fifo", "news-0", "dead-0"}


def test_the_same_seed_gives_the_same_bytes(made: str, tmp_path: Path) -> None:
    def digests(directory: str) -> list[str]:
        logs = sorted(Path(directory).glob("shard-*/segment-*.log"))
        return [hashlib.sha256(log.read_bytes()).hexdigest() for log in logs]

    for seed in (1, 2):
        again = str(tmp_path / f"seed-{seed}")
        histories.make(again, EVENTS, seed=seed)
        assert (digests(again) == digests(made)) is (seed == 1)
