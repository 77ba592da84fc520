"""The campaign's rules of topics, schedules, reader groups and replays: each finds what is planted, and only that."""

from __future__ import annotations

import pytest

from campaign.fanout_rules import (
    Commit,
    Copy,
    check_commits,
    check_copies,
    check_copies_in_order,
    check_due_times,
    check_read,
    check_replay,
)

FIRST_MS, RATE_MS = 10_500, 1_000


def commit(epoch: int, position: int, started_s: float, shard: int = 0) -> Commit:
    return Commit(shard, epoch, position, started_s, started_s + 0.5)


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([1, 2, 3], ""),
        ([3, 1, 2, 4], ""),  # 4 was published and not acknowledged
        ([1, 3], "1 messages are missing, such as [2]"),
        ([1, 2, 3, 2], "1 messages arrived more than once, such as [2]"),
        ([1, 2, 3, 4, 4], "1 messages arrived more than once, such as [4]"),
        ([1, 2, 3, 9], "1 messages were not published for this queue, such as [9]"),
    ],
)
def test_an_acknowledged_publish_arrives_once_in_every_matching_queue(numbers: list[int], found: str) -> None:
    violations = check_copies("queue", {1, 2, 3}, {1, 2, 3, 4}, [Copy(number) for number in numbers])
    assert [str(each) for each in violations] == ([f"topic: queue: {found}"] if found else [])


def test_copies_of_a_group_arrive_in_order() -> None:
    copies = [Copy(1, "a"), Copy(4, "b"), Copy(2, "a"), Copy(5, "b"), Copy(3, "a")]
    assert check_copies_in_order("queue", copies) == []
    (violation,) = check_copies_in_order("queue", [*copies, Copy(4, "b")])
    assert violation.text == "queue: 4 of b arrived after 5"


@pytest.mark.parametrize(
    ("due_ms", "found"),
    [
        ([10_500, 11_500, 12_500], ""),
        ([10_500, 12_500, 11_500, 13_500], ""),  # the last one is later than what must have been fired
        ([10_500, 12_500], "1 due times were not fired, such as [11500]"),
        ([10_500, 11_500], "1 due times were not fired, such as [12500]"),
        ([10_500, 11_500, 11_500, 12_500], "1 due times were fired more than once, such as [11500]"),
        ([10_500, 11_500, 12_000, 12_500], "1 due times are none of the schedule, such as [12000]"),
        ([9_500, 10_500, 11_500, 12_500], "1 due times are none of the schedule, such as [9500]"),
    ],
)
def test_each_due_time_is_fired_once(due_ms: list[int], found: str) -> None:
    violations = check_due_times(FIRST_MS, RATE_MS, 12_700, due_ms)
    assert [each.text for each in violations] == ([found] if found else [])


def test_commits_of_a_reader_group_are_kept_and_stale_ones_refused() -> None:
    sound = [commit(1, 10, 0.0), commit(1, 20, 1.0), commit(2, 30, 2.0), commit(2, 5, 2.0, shard=1)]
    assert check_commits(sound, {0: 30, 1: 5}) == []
    at_once = commit(1, 20, 2.2)  # begun before the commit with the higher epoch was answered
    assert check_commits([*sound, at_once], {0: 30, 1: 5}) == []
    assert _kinds([*sound, commit(1, 30, 3.0)], {0: 30, 1: 5}) == ["reader-epoch"]
    assert _kinds([*sound, commit(2, 20, 3.0)], {0: 30, 1: 5}) == ["reader-commit"]
    assert _kinds(sound, {0: 30}) == ["reader-commit"], "the position of shard 1 is gone"
    assert _kinds(sound, {0: 20, 1: 5}) == ["reader-commit"]


def _kinds(commits: list[Commit], now: dict[int, int]) -> list[str]:
    return [each.checker for each in check_commits(commits, now)]


def test_every_retained_message_is_read() -> None:
    assert check_read({"0:1", "0:2", "1:1"}, ["0:2", "1:1"]) == []
    (violation,) = check_read({"0:1"}, ["0:1", "0:2", "1:1"])
    assert violation.text == "2 retained messages were never read, such as ['0:2', '1:1']"


def test_a_replay_delivers_each_message_once() -> None:
    assert check_replay(range(4), [2, 0, 1, 3]) == []
    (violation,) = check_replay(range(4), [0, 1, 1, 3])
    assert violation.text == "missing [2], too many [1]"
