"""A writer of the lake that dies at any step leaves what was there before, or all of what it wrote."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batonq.pipeline.lake import Lake, tables
from batonq.pipeline.lake.compaction import groups
from batonq.pipeline.lake.parquet_files import File
from tests.pipeline.lake_rig import FakeFrame, Fuse, Killed, Row, burning, rows_in

EXAMPLES = max(10, settings().max_examples // 15)
TABLE = "events"
fuses = st.one_of(st.none(), st.integers(0, 16))


class LakeMachine(RuleBasedStateMachine):
    """Batches, replacements and compactions, with a death somewhere in each; a reader now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="lake-"))
        self.lake = Lake(self.directory)
        self.reader: tuple[list[str], list[Row]] | None = None
        self.versions: dict[int, list[Row]] = {}
        self.rows: list[Row] = []
        self.batches: set[str] = set()
        self.next = 0

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    # --- what a writer does, to its end or not ----------------------------------------------------

    def attempt(self, steps: int | None, then: list[Row], work: Callable[[], Any]) -> bool:
        """True when all of it came about."""
        try:
            with burning(Fuse(steps)):
                work()
        except Killed:
            assert self.read() in (self.rows, then), "half of it is there, or both, or nothing"
        else:
            assert self.read() == then
        done = self.read() == then
        self.rows = self.read()
        if self.lake.has(TABLE):
            self.versions[self.lake.snapshot(TABLE).version] = self.rows
        return done

    def read(self) -> list[Row]:
        return rows_in(self.lake.files(TABLE)) if self.lake.has(TABLE) else []

    def some_rows(self, counts: list[int]) -> list[Row]:
        made = []
        for day, count in enumerate(counts):
            made += [(self.next + index, day) for index in range(count)]
            self.next += count
        return made

    @rule(batch=st.integers(0, 8), counts=st.lists(st.integers(0, 3), max_size=3), steps=fuses)
    def write(self, batch: int, counts: list[int], steps: int | None) -> None:
        name, frame = f"q-{batch:03}", FakeFrame(self.some_rows(counts))
        known = self.lake.has(TABLE) and self.lake.snapshot(TABLE).position(name) is not None
        assert known == (name in self.batches)
        then = self.rows if known else sorted([*self.rows, *frame.rows])
        self.attempt(steps, then, lambda: self.lake.write(frame, TABLE, batch=name, by=("day",)))  # type: ignore[arg-type]
        if self.lake.has(TABLE) and self.lake.snapshot(TABLE).position(name) is not None:
            self.batches.add(name)

    @rule(counts=st.lists(st.integers(0, 3), min_size=1, max_size=3), steps=fuses)
    def replace(self, counts: list[int], steps: int | None) -> None:
        frame, since = FakeFrame(self.some_rows(counts)), self.lake.content(TABLE)
        replaced = partial(self.lake.replace, frame, TABLE, by=("day",), since=since)  # type: ignore[arg-type]
        self.attempt(steps, list(frame.rows), replaced)

    @precondition(lambda self: self.lake.has(TABLE))
    @rule(steps=fuses)
    def compact(self, steps: int | None) -> None:
        content = self.lake.snapshot(TABLE).content
        self.attempt(steps, self.rows, lambda: list(self.lake.compact(None, TABLE)))  # type: ignore[arg-type]
        assert self.lake.snapshot(TABLE).content == content, "no row was changed"
        if steps is None:
            assert not list(groups(self.lake.snapshot(TABLE).files))

    # --- a reader ---------------------------------------------------------------------------------

    @precondition(lambda self: self.reader is None and self.lake.has(TABLE))
    @rule()
    def begin_to_read(self) -> None:
        self.reader = (self.lake.files(TABLE), self.rows)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def read_to_the_end(self) -> None:
        assert self.reader is not None
        assert rows_in(self.reader[0]) == self.reader[1], "the files of a reader stay for the time of grace"
        self.reader = None

    @precondition(lambda self: self.versions)
    @rule(data=st.data())
    def read_an_older_version(self, data: st.DataObject) -> None:
        version = data.draw(st.sampled_from(sorted(self.versions)))
        assert rows_in(self.lake.files(TABLE, version)) == self.versions[version]

    @precondition(lambda self: self.reader is None and self.lake.has(TABLE))
    @rule(steps=fuses)
    def vacuum(self, steps: int | None) -> None:
        """Without any grace: what is left is the table, and nothing else."""
        tables.LEFTOVERS_HOURS = 0
        try:
            self.attempt(steps, self.rows, lambda: self.lake.vacuum(TABLE, 0))
        finally:
            tables.LEFTOVERS_HOURS = 24
        self.versions.clear()
        if steps is None:
            there = {str(path) for path in (self.directory / TABLE).rglob("part-*.parquet")}
            assert there == set(self.lake.files(TABLE))

    @invariant()
    def counts(self) -> None:
        if self.lake.has(TABLE):
            assert self.lake.rows(TABLE) == len(self.rows)


TestLake = LakeMachine.TestCase
TestLake.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300)), max_size=20))
def test_a_compaction_takes_small_files_of_one_day_and_ends(sizes: list[tuple[int, int]]) -> None:
    files = [File(f"day={day}/{at}.parquet", size, 1, 0, str(day), "") for at, (day, size) in enumerate(sizes)]
    for group in groups(files, 100):
        assert all(file.bytes < 50 and file.day == group.day for file in group.files)
        assert len(group.files) > group.count >= 1
