"""A writer of the lake that dies at any step leaves what was there before, or all of what it wrote."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batonq.pipeline.lake import Lake
from batonq.pipeline.lake.compaction import groups
from batonq.pipeline.lake.notes import Batches, File, Note, live, standing_for
from tests.pipeline.lake_rig import FakeFrame, FakeSpark, Fuse, Killed, Row, burning, rows_in

EXAMPLES = max(10, settings().max_examples // 6)
TABLE = "events"
NEVER = Fuse(None)
fuses = st.one_of(st.none(), st.integers(0, 40))


class LakeMachine(RuleBasedStateMachine):
    """Batches, replacements and compactions, with a death somewhere in each; a reader now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="lake-"))
        self.lake = Lake(self.directory)
        self.reader: tuple[Lake, list[str], list[Row]] | None = None
        self.rows: list[Row] = []
        self.batches: set[str] = set()
        self.next = 0

    def teardown(self) -> None:
        self.lake.close()
        if self.reader:
            self.reader[0].close()
        shutil.rmtree(self.directory)

    # --- what a writer does, to its end or not ----------------------------------------------------

    def attempt(self, steps: int | None, then: list[Row], work: Callable[[Fuse], Any]) -> bool:
        """True when all of it came about. A death takes the lake object, locks and all."""
        fuse = Fuse(steps)
        try:
            with burning(fuse):
                work(fuse)
        except Killed:
            self.lake.close()
            self.lake = Lake(self.directory)
            assert self.read() in (self.rows, then), "half of it is there, or both, or nothing"
        else:
            assert self.read() == then
        done = self.read() == then
        self.rows = self.read()
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
        name, new = f"q-{batch:03}", self.some_rows(counts)
        then = self.rows if name in self.batches else sorted(self.rows + new)
        frame: Any = lambda fuse: FakeFrame(new, fuse)  # noqa: E731
        came = self.attempt(steps, then, lambda fuse: self.lake.write(frame(fuse), TABLE, batch=name, by=("day",)))
        if came and new:
            self.batches.add(name)
        elif came and self.lake.has(TABLE):
            self.batches |= {note.batch for note in self.lake.notes(TABLE) if note.batch == name}

    @rule(counts=st.lists(st.integers(0, 3), min_size=1, max_size=3), steps=fuses)
    def replace(self, counts: list[int], steps: int | None) -> None:
        new = self.some_rows(counts)
        frame: Any = lambda fuse: FakeFrame(new, fuse)  # noqa: E731
        self.attempt(steps, new, lambda fuse: self.lake.replace(frame(fuse), TABLE, by=("day",)))

    @precondition(lambda self: self.lake.has(TABLE))
    @rule(steps=fuses)
    def compact(self, steps: int | None) -> None:
        def work(fuse: Fuse) -> None:
            spark: Any = FakeSpark(fuse)
            list(self.lake.compact(spark, TABLE))

        self.attempt(steps, self.rows, work)
        if steps is None:
            assert not list(groups(self.lake.notes(TABLE)))

    # --- a reader ---------------------------------------------------------------------------------

    @precondition(lambda self: self.reader is None and self.lake.has(TABLE))
    @rule()
    def begin_to_read(self) -> None:
        lake = Lake(self.directory)
        spark: Any = FakeSpark(NEVER)
        lake.read(spark, TABLE)
        self.reader = (lake, lake.files(TABLE), self.rows)

    @precondition(lambda self: self.reader is not None)
    @rule()
    def read_to_the_end(self) -> None:
        assert self.reader is not None
        lake, files, rows = self.reader
        assert rows_in(files) == rows, "what a reader began with stays until it is done"
        lake.close()
        self.reader = None

    @invariant()
    def every_row_is_there_once(self) -> None:
        assert self.read() == self.rows

    @precondition(lambda self: self.reader is None)
    @rule()
    def tidy(self) -> None:
        """The next writer leaves nothing that does not count."""
        with self.lake._files(TABLE).writing():
            assert self.lake._files(TABLE).clean()
        table = self.directory / TABLE
        there = {str(path) for path in table.glob("batch=*/**/*.parquet")}
        assert there == (set(self.lake.files(TABLE)) if self.lake.has(TABLE) else set())
        assert {path.stem for path in (table / "_batches").iterdir()} == {note.batch for note in self.lake.notes(TABLE)}


TestLake = LakeMachine.TestCase
TestLake.settings = settings(max_examples=EXAMPLES)

ids = st.one_of(
    st.sampled_from(["a", "b-1x", "whole"]),
    st.integers(0, 30).map("{:03}".format),
    st.integers(0, 30).map("q-{:02}".format),
)


@given(st.sets(ids), st.sets(ids))
def test_a_set_of_batches_is_a_set(some: set[str], more: set[str]) -> None:
    batches = Batches.of(some) | Batches.of(more)
    assert Batches.parse(batches.texts()) == batches == Batches.of(some | more)
    assert all((one in batches) == (one in some | more) for one in some | more | {"zzz", "004", "q-04", "a"})


def test_consecutive_batches_take_the_room_of_one() -> None:
    assert Batches.of(f"{number:06}" for number in range(10_000)).texts() == ["000000:009999"]


def test_what_a_note_holds_does_not_count_even_when_its_holder_is_held() -> None:
    one, two = (Note(name, (File(f"batch={name}-x/part.parquet", 1, 10),), 1) for name in ("1", "2"))
    merged = Note("compact-000001", one.files, 1, Batches.of(["1"]))
    again = Note("compact-000002", one.files, 1, standing_for([merged]))
    assert live([one, two]) == [one, two]
    assert live([one, two, merged]) == [two, merged]
    assert live([one, two, merged, again]) == [two, again] == live([one, two, again])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300)), max_size=20))
def test_a_compaction_takes_small_files_of_one_day_and_ends(sizes: list[tuple[int, int]]) -> None:
    notes = [
        Note(f"{at:03}", (File(f"batch={at:03}-x/day={day}/part.parquet", 1, size),), 1)
        for at, (day, size) in enumerate(sizes)
    ]
    for group in groups(notes, 100):
        assert all(file.bytes < 50 and file.partition == group.partition for file in group.files)
        assert len(group.files) > group.count >= 1
        assert not group.kept
