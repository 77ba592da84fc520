"""What every log must do, whatever it is made of.

An implementation joins by a class that inherits LogConformance and gives it a `maker`. Segments are small (4 KiB),
so that a few frames fill one.
"""

from __future__ import annotations

from typing import Protocol

import pytest

from batonq.errors import Fenced, LogCorrupt, LogError, LogGap
from batonq.log.frames import NO_DIGEST
from batonq.log.interface import Log, Room
from tests.support.logs import append, make_frame, next_frame

SEGMENT_BYTES = 4096
SHARD = 3


class Maker(Protocol):
    """Opens the log under test, always the same one."""

    durable: bool  # whether what was committed is there after `reopen`

    def open(self) -> Log: ...
    def reopen(self, log: Log) -> Log: ...
    def fail_next(self, log: Log) -> None:
        """The next append meets an error of what lies beneath."""


class LogConformance:
    @pytest.fixture
    def log(self, maker: Maker) -> Log:
        return maker.open()

    # --- an empty log

    def test_a_new_log_is_empty(self, log: Log) -> None:
        assert (log.shard, log.first, log.next, log.tail_digest, log.tail_epoch) == (SHARD, 1, 1, NO_DIGEST, 0)
        assert list(log.frames(1)) == []
        assert log.bytes_retained() == 0
        assert log.room() is Room.PLENTY

    def test_a_new_log_has_one_segment_that_is_being_written(self, log: Log) -> None:
        (segment,) = log.segments()
        assert (segment.first, segment.stop, segment.bytes, segment.sealed) == (1, 1, 0, False)

    # --- reading

    def test_a_section_is_what_its_parts_are_read_from(self, log: Log) -> None:
        for at in range(1, 30):
            append(log, b"body %d" % at)
        for number in (1, 15, 29):
            section = log.section(number)
            assert section == log.frame(number).variable
            assert section[1:4] == log.read_variable(number << 16, 1, 3)
        with pytest.raises(LogGap, match="frame"):
            log.section(30)

    def test_what_was_just_written_is_not_cold(self, log: Log) -> None:
        append(log, b"body")
        assert not log.is_cold(1) and not log.is_cold(2)
        log.warm([1, 2])  # what is not there is left to whoever reads it

    # --- appending

    def test_frames_come_back_as_they_were_appended(self, log: Log) -> None:
        written = [append(log, b"body %d" % at, count=at) for at in range(1, 30)]
        assert list(log.frames(1)) == written
        assert (log.first, log.next, log.tail_digest) == (1, 30, written[-1].digest)
        assert log.bytes_retained() == sum(frame.size for frame in written)

    def test_a_range_of_frames(self, log: Log) -> None:
        written = [append(log, bytes(100)) for _ in range(60)]
        assert list(log.frames(20, 40)) == written[19:39]
        assert list(log.frames(59)) == written[58:]
        assert list(log.frames(61)) == []
        assert [log.frame(number) for number in (1, 30, 60)] == [written[0], written[29], written[59]]

    def test_frames_end_where_the_log_ended_when_asked(self, log: Log) -> None:
        first = append(log)
        reading = log.frames(1)
        append(log)
        assert list(reading) == [first]

    def test_frames_beyond_the_end_are_a_gap(self, log: Log) -> None:
        append(log)
        for ask in (lambda: log.frame(2), lambda: log.frame(0), lambda: log.frames(3), lambda: log.frames(0)):
            with pytest.raises(LogGap, match="frame"):
                ask()

    def test_a_frame_out_of_order_is_a_programming_error(self, log: Log) -> None:
        append(log)
        for number, digest in ((1, NO_DIGEST), (3, log.tail_digest), (2, NO_DIGEST)):
            with pytest.raises(AssertionError, match="does not follow"):
                log.append(make_frame(number, digest, shard=SHARD), lambda error: None)
        append(log)

    def test_an_append_within_done_is_allowed(self, log: Log) -> None:
        outcomes: list[BaseException | None] = []

        def done(error: BaseException | None) -> None:
            outcomes.append(error)
            if len(outcomes) < 3:
                log.append(next_frame(log), done)

        log.append(next_frame(log), done)
        assert outcomes == [None, None, None]
        assert log.next == 4

    def test_a_lower_epoch_is_fenced(self, log: Log) -> None:
        append(log, epoch=5)
        outcomes: list[BaseException | None] = []
        log.append(next_frame(log, epoch=4), outcomes.append)
        assert isinstance(outcomes[0], Fenced)
        assert (log.next, log.tail_epoch) == (2, 5)

    def test_a_higher_epoch_goes_on(self, log: Log) -> None:
        append(log, epoch=5)
        append(log, epoch=7)
        assert log.tail_epoch == 7

    def test_a_frame_longer_than_a_segment(self, log: Log) -> None:
        written = [append(log, b"small"), append(log, b"L" * (3 * SEGMENT_BYTES)), append(log, b"small again")]
        assert list(log.frames(1)) == written
        assert log.read_variable(2 << 16, 3 * SEGMENT_BYTES - 2, 2) == b"LL"

    def test_after_an_error_nothing_more_is_taken(self, maker: Maker, log: Log) -> None:
        kept = append(log)
        outcomes: list[BaseException | None] = []
        maker.fail_next(log)
        log.append(next_frame(log, b"lost"), outcomes.append)
        log.append(next_frame(log, b"refused"), outcomes.append)
        assert all(isinstance(outcome, LogError) for outcome in outcomes) and len(outcomes) == 2
        assert log.next == 2
        assert list(log.frames(1)) == [kept]

    # --- reading

    def test_variable_sections_are_read_by_position(self, log: Log) -> None:
        for number in range(1, 40):
            append(log, b"%03d:the body of this frame" % number)
        for number in (1, 17, 39):
            assert log.read_variable(number << 16 | 5, 0, 3) == b"%03d" % number
            assert log.read_variable(number << 16, 4, 8) == b"the body"
            assert log.read_variable(number << 16, 0, 0) == b""

    def test_a_position_beyond_the_section_is_told(self, log: Log) -> None:
        append(log, b"12345")
        with pytest.raises(LogCorrupt, match="bytes 3 to 8 of frame 1, which has 5"):
            log.read_variable(1 << 16, 3, 5)

    # --- segments and dropping

    def test_segments_follow_each_other(self, log: Log) -> None:
        for _ in range(50):
            append(log, bytes(300))
        segments = log.segments()
        assert len(segments) > 3
        assert segments[0].first == 1 and segments[-1].stop == 51
        assert [left.stop for left in segments[:-1]] == [right.first for right in segments[1:]]
        assert [segment.sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
        assert sum(segment.bytes for segment in segments) == log.bytes_retained()
        for segment in segments:
            assert segment.first_time_ms == segment.first * 1_000
            assert segment.last_time_ms == (segment.stop - 1) * 1_000

    def test_dropping_the_front_frees_whole_segments(self, log: Log) -> None:
        written = [append(log, bytes(300)) for _ in range(50)]
        first, second, third = (segment.first for segment in log.segments()[:3])
        assert log.droppable(first) == first
        assert log.droppable(second - 1) == first
        assert log.droppable(second) == log.droppable(third - 1) == second
        log.drop_front(second - 1)
        assert log.first == first
        log.drop_front(third + 1)
        assert log.first == third
        assert list(log.frames(third)) == written[third - 1 :]
        assert log.bytes_retained() == sum(frame.size for frame in written[third - 1 :])

    def test_what_was_dropped_is_a_gap(self, log: Log) -> None:
        for _ in range(50):
            append(log, bytes(300))
        second = log.segments()[1].first
        log.drop_front(second)
        with pytest.raises(LogGap):
            log.frames(second - 1)
        with pytest.raises(LogGap):
            log.read_variable(1 << 16, 0, 10)
        with pytest.raises(LogGap):
            log.frame(1)

    def test_the_last_frame_is_never_dropped(self, log: Log) -> None:
        for _ in range(50):
            append(log, bytes(300))
        log.drop_front(1_000)
        assert log.first < log.next == 51
        assert log.first == log.segments()[-1].first == log.droppable(1_000)
        append(log)

    def test_dropping_and_appending_go_on_for_long(self, log: Log) -> None:
        for at in range(300):
            append(log, b"%04d" % at + bytes(200))
            log.tick()
            if at % 20 == 19:
                log.drop_front(log.next - 10)
        assert len(log.segments()) < 5
        for frame in log.frames(log.first):
            assert frame.variable[:4] == b"%04d" % (frame.number - 1)

    def test_reading_what_is_dropped_meanwhile_ends_in_a_gap(self, log: Log) -> None:
        for _ in range(100):
            append(log, bytes(300))
        reading = log.frames(1)
        assert next(reading).number == 1
        log.drop_front(log.next)
        for _ in range(100):
            append(log, bytes(290))
            log.tick()
        with pytest.raises(LogGap):
            list(reading)

    # --- pieces

    def test_pieces_are_the_frames_as_they_are_stored(self, log: Log) -> None:
        written = [append(log, bytes(number * 7 % 400)) for number in range(60)]
        stored = [b"".join((frame.header, frame.rows, frame.variable)) for frame in written]
        for bytes_max in (1, 700, 3_000, 1 << 20):
            start, parts = 1, []
            while start < log.next:
                piece = log.piece(start, bytes_max)
                data = piece.read()
                assert piece.start == start < piece.stop
                assert data == b"".join(stored[start - 1 : piece.stop - 1])
                assert len(data) <= bytes_max or piece.stop == start + 1
                parts.append(data)
                start = piece.stop
            assert b"".join(parts) == b"".join(stored)
        assert log.piece(1, 1 << 20, 3).stop == 4
        for beyond in (0, 61):
            with pytest.raises(LogGap):
                log.piece(beyond, 100)

    # --- again

    def test_what_was_committed_is_there_after_opening_again(self, maker: Maker, log: Log) -> None:
        if not maker.durable:
            pytest.skip("nothing of this log outlives it")
        written = [append(log, bytes(300), epoch=4) for _ in range(50)]
        log.drop_front(log.segments()[2].first)
        first = log.first
        again = maker.reopen(log)
        assert (again.first, again.next, again.tail_epoch) == (first, 51, 4)
        assert again.tail_digest == written[-1].digest
        assert list(again.frames(first)) == written[first - 1 :]
        written.append(append(again, b"more"))
        assert list(maker.reopen(again).frames(first)) == written[first - 1 :]

    def test_closing_twice_is_no_error(self, log: Log) -> None:
        append(log)
        log.close()
        log.close()
