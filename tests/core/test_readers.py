"""Reader groups on shards: commits, epochs, failures, seeks; compared with a naive model."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from batonq.core.shard.commands.readers import SEEK_MS
from batonq.core.shard.state.readers import GROUPS_MAX, MEMBERS_MAX, GroupSettings, Reader, Start, assigned
from batonq.errors import (
    BatonError,
    NotRetained,
    OverLimit,
    PositionInvalid,
    QueueDoesNotExist,
    ReaderDoesNotExist,
    ReaderExists,
    StaleMember,
)
from tests.core.rig import Bench

HOUR_MS = 3_600_000
SETTINGS = GroupSettings(3, 9, "dead", 30_000)


BEGINNING = Start("start")


def make(rig: Bench, group: str = "g", start: Start = BEGINNING, queue: int = 1) -> Reader:
    return rig.shard.reader_commands.set_reader(queue, group, rig.now, SETTINGS, start, rig.now, False, rig.now)


def positions(rig: Bench, queue: int = 1) -> list[int]:
    return [position for position, _ in rig.shard.retained_of(queue, rig.now).entries()]


@pytest.fixture
def rig() -> Bench:
    rig = Bench()
    rig.queue(1, retain_ms=HOUR_MS)
    rig.send(1, "a", "b", "c")
    rig.check()
    return rig


# --- assignment ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_an_assignment_is_even_and_moves_few_shards(seed: int) -> None:
    random = Random(seed)
    members: dict[str, list[int]] = {}
    for _ in range(30):
        shards = sorted(random.sample(range(40), random.randrange(1, 20)))
        if members and random.random() < 0.4:
            del members[random.choice([*members])]
        else:
            members.setdefault(f"m{random.randrange(12)}", [])
        before = {member: [*mine] for member, mine in members.items()}
        members = assigned(members, shards)
        given = [shard for mine in members.values() for shard in mine]
        assert sorted(given) == (shards if members else [])
        if members:
            sizes = [len(mine) for mine in members.values()]
            assert max(sizes) - min(sizes) <= 1
            for member, mine in members.items():  # nobody loses a shard without need
                lost = [shard for shard in before[member] if shard in shards and shard not in mine]
                assert not lost or len(mine) >= len(shards) // len(members)


# --- commit ------------------------------------------------------------------------------------------


def test_a_group_begins_where_it_is_told_to(rig: Bench) -> None:
    first = positions(rig)
    rig.later(5_000)
    rig.send(1, "d")
    rig.check()
    every = positions(rig)
    assert make(rig, "start").position == 0
    assert make(rig, "end", Start("end")).position == every[-1]
    assert make(rig, "time", Start("time", rig.now)).position == every[3] - 1
    assert make(rig, "early", Start("time", 5)).position == every[0] - 1
    assert make(rig, "late", Start("time", rig.now + HOUR_MS)).position == every[-1]
    assert make(rig, "there", Start("position", first[1])).position == first[1] - 1
    with pytest.raises(PositionInvalid, match=rf"no retained message at position 0:7\. .* from 0:{every[0]} to 0:"):
        make(rig, "wrong", Start("position", 7))
    rig.check()


def test_a_commit_survives_and_a_lower_one_changes_nothing(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    a = readers.join(1, "g", "a", [0], rig.now)
    assert a.shards == [0]
    readers.begin_fetch(1, "g", "a", a.epoch, rig.now)
    first, second, third = positions(rig)
    assert readers.commit_reader(1, "g", "a", a.epoch, second, rig.now).position == second
    assert readers.commit_reader(1, "g", "a", a.epoch, first, rig.now).position == second
    for wrong in (third + 1, 1 << 62):
        with pytest.raises(PositionInvalid, match="no retained message"):
            readers.commit_reader(1, "g", "a", a.epoch, wrong, rig.now)
    rig.check()
    for successor in (rig.replayed(), rig.loaded()):
        assert successor.reader(1, "g").position == second
    rig.later(2 * HOUR_MS)
    assert positions(rig) == []
    assert readers.commit_reader(1, "g", "a", a.epoch, third, rig.now).position == third  # fetched before it ended
    rig.check()


def test_an_epoch_that_was_given_to_nobody_keeps_no_member_out(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    first, *_ = positions(rig)
    a = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_fetch(1, "g", "a", a.epoch, rig.now)
    for epoch in ((1 << 53) - 1, rig.now + 25 * HOUR_MS):
        with pytest.raises(StaleMember, match="given to no member"):
            readers.begin_fetch(1, "g", "x", epoch, rig.now)
        with pytest.raises(StaleMember, match="given to no member"):
            readers.commit_reader(1, "g", "x", epoch, first, rig.now)
    assert readers.commit_reader(1, "g", "a", a.epoch, first, rig.now).position == first
    readers.begin_fetch(1, "g", "x", rig.now + 1_000, rig.now)  # as good as a guess of the next epoch
    rig.later(2_000)
    readers.leave(1, "g", "a", [0], rig.now)
    again = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_fetch(1, "g", "a", again.epoch, rig.now)
    rig.check()


def test_a_stale_member_is_refused(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    first, second, _ = positions(rig)
    a = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_fetch(1, "g", "a", a.epoch, rig.now)
    b = readers.join(1, "g", "b", [0, 1], rig.now)
    assert b.epoch > a.epoch and b.shards == [1] and b.members == 2
    readers.leave(1, "g", "a", [0, 1], rig.now)
    b = readers.join(1, "g", "b", [0, 1], rig.now)
    assert b.shards == [0, 1] and b.members == 1
    readers.commit_reader(1, "g", "a", a.epoch, first, rig.now)  # nobody else has read the shard yet
    readers.begin_fetch(1, "g", "b", b.epoch, rig.now)
    rig.check()
    for epoch in (a.epoch, b.epoch):  # an old epoch, and another member's
        with pytest.raises(StaleMember, match="Join again"):
            readers.begin_fetch(1, "g", "a", epoch, rig.now)
        with pytest.raises(StaleMember, match=f"epoch {b.epoch} by 'b'"):
            readers.commit_reader(1, "g", "a", epoch, second, rig.now)
        with pytest.raises(StaleMember):
            readers.fail_reader(1, "g", "a", epoch, second, "", rig.now)
    assert readers.commit_reader(1, "g", "b", b.epoch, second, rig.now).position == second
    rig.check()


def test_a_member_that_is_silent_loses_its_shards(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    a = readers.join(1, "g", "a", [0, 1], rig.now)
    b = readers.join(1, "g", "b", [0, 1], rig.now)
    assert readers.join(1, "g", "a", [0, 1], rig.now).shards == [0] and b.shards == [1]
    assert a.epoch < b.epoch
    rig.check()
    rig.later(20_000)
    again = readers.join(1, "g", "b", [0, 1], rig.now)
    assert (again.epoch, again.shards) == (b.epoch, [1])  # a heartbeat writes nothing
    assert not rig.check()
    rig.later(15_000)
    alone = readers.join(1, "g", "b", [0, 1], rig.now)
    assert alone.shards == [0, 1] and alone.epoch > b.epoch
    with pytest.raises(StaleMember, match="not a member"):
        readers.assignment(1, "g", "a")
    rig.check()


def test_a_new_owner_gives_every_member_its_time(rig: Bench) -> None:
    make(rig)
    rig.shard.reader_commands.join(1, "g", "a", [0, 1], rig.now)
    b = rig.shard.reader_commands.join(1, "g", "b", [0, 1], rig.now)
    rig.later(29_000)
    rig.commit()
    rig.restart(rig.replayed())
    rig.later(2_000)
    again = rig.shard.reader_commands.join(1, "g", "b", [0, 1], rig.now)
    assert (again.epoch, again.shards) == (b.epoch, b.shards)
    rig.later(30_000)
    assert rig.shard.reader_commands.join(1, "g", "b", [0, 1], rig.now).shards == [0, 1]
    rig.check()


# --- failures and seeks -----------------------------------------------------------------------------


def test_failures_of_a_position_are_counted_until_it_is_done(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    epoch = readers.join(1, "g", "a", [0], rig.now).epoch
    first, second, third = positions(rig)
    for failures in (1, 2, 3):
        reader = readers.fail_reader(1, "g", "a", epoch, first, "ValueError: no", rig.now)
        assert (reader.failures, reader.is_given_up) == (failures, failures == 3)
        rig.check()
    assert rig.replayed().reader(1, "g").is_given_up
    readers.commit_reader(1, "g", "a", epoch, first, rig.now)
    reader = readers.fail_reader(1, "g", "a", epoch, second, "x" * 1000, rig.now)
    assert (reader.failures, reader.is_given_up, len(reader.error)) == (1, False, 500)
    with pytest.raises(PositionInvalid, match="is done already"):
        readers.fail_reader(1, "g", "a", epoch, first, "", rig.now)
    with pytest.raises(PositionInvalid, match=f"is not the next one of reader group 'g', which is 0:{second}"):
        readers.fail_reader(1, "g", "a", epoch, third, "", rig.now)
    rig.check()


def test_a_seek_refuses_what_was_fetched_before(rig: Bench) -> None:
    made = make(rig)
    readers = rig.shard.reader_commands
    first, second, third = positions(rig)
    a = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_fetch(1, "g", "a", a.epoch, rig.now)
    readers.commit_reader(1, "g", "a", a.epoch, third, rig.now)
    seek = readers.begin_seek(1, "g", rig.now)
    assert readers.join(1, "g", "a", [0], rig.now).shards == []
    late = readers.join(1, "g", "b", [0], rig.now)  # a new member, whose join begins another epoch
    assert late.shards == [] and late.epoch > seek.group_epoch
    start = Start("position", second)
    readers.set_reader(1, "g", made.created_ms, SETTINGS, start, seek.group_epoch, False, rig.now)
    rig.check()
    readers.end_seek(1, "g", seek.group_epoch, rig.now)
    with pytest.raises(StaleMember):
        readers.commit_reader(1, "g", "a", a.epoch, third, rig.now)
    readers.leave(1, "g", "b", [0], rig.now)
    again = readers.join(1, "g", "a", [0], rig.now)
    assert again.shards == [0] and a.epoch < again.reset_epoch <= again.epoch
    assert readers.begin_fetch(1, "g", "a", again.epoch, rig.now).position == second - 1 >= first
    with pytest.raises(StaleMember, match="Seek again"):
        readers.set_reader(1, "g", made.created_ms, SETTINGS, start, seek.group_epoch, False, rig.now)
    rig.check()


def test_a_seek_that_nobody_ends_stops_the_members_only_for_a_while(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    readers.join(1, "g", "a", [0], rig.now)
    seek = readers.begin_seek(1, "g", rig.now)
    assert readers.join(1, "g", "a", [0], rig.now).shards == []
    rig.later(SEEK_MS)
    again = readers.join(1, "g", "a", [0], rig.now)
    assert again.shards == [0] and again.epoch > seek.group_epoch
    rig.check()


def test_what_was_fetched_before_a_seek_that_nobody_ended_must_not_be_committed(rig: Bench) -> None:
    make(rig)
    readers = rig.shard.reader_commands
    before = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_seek(1, "g", rig.now)  # it may have set positions on other shards
    rig.later(SEEK_MS)
    after = readers.join(1, "g", "a", [0], rig.now)
    assert before.epoch < after.reset_epoch <= after.epoch
    assert readers.join(1, "g", "a", [0], rig.now) == after
    rig.check()


# --- creating a group ------------------------------------------------------------------------------------


def test_of_several_requests_that_create_a_group_the_last_one_does(rig: Bench) -> None:
    readers, start = rig.shard.reader_commands, Start("start")
    one = readers.begin_create(1, "g", SETTINGS, rig.now)
    two = readers.begin_create(1, "g", SETTINGS, rig.now)
    assert one < two
    readers.set_reader(1, "g", two, SETTINGS, start, two, False, rig.now)  # as on another shard
    with pytest.raises(StaleMember, match="Another request creates"):
        readers.set_reader(1, "g", one, SETTINGS, start, one, False, rig.now)
    readers.delete_reader(1, "g", rig.now)
    with pytest.raises(StaleMember, match="Another request creates"):
        readers.create_reader(1, "g", one, SETTINGS, start, rig.now)
    assert readers.create_reader(1, "g", two, SETTINGS, start, rig.now).created_ms == two
    assert not readers.begin_create(1, "g", SETTINGS, rig.now)
    rig.check()


def test_what_a_deletion_left_of_a_group_is_replaced(rig: Bench) -> None:
    left = make(rig)
    readers = rig.shard.reader_commands
    a = readers.join(1, "g", "a", [0], rig.now)
    readers.begin_fetch(1, "g", "a", a.epoch, rig.now)
    readers.commit_reader(1, "g", "a", a.epoch, positions(rig)[1], rig.now)
    rig.later(1000)
    made = readers.set_reader(1, "g", rig.now, SETTINGS, Start("start"), rig.now, False, rig.now)
    assert (made.created_ms, made.position, made.member) == (rig.now, 0, "") and left.created_ms < rig.now
    rig.check()


# --- limits and wrong names -----------------------------------------------------------------------------


def test_wrong_names_and_limits(rig: Bench) -> None:
    readers = rig.shard.reader_commands
    with pytest.raises(ReaderDoesNotExist, match="Queue q1 has no reader group 'g'"):
        readers.join(1, "g", "a", [0], rig.now)
    rig.queue(2)
    with pytest.raises(NotRetained, match="q2 does not retain"):
        make(rig, queue=2)
    with pytest.raises(QueueDoesNotExist):
        readers.readers(77)
    make(rig)
    assert readers.begin_create(1, "other", SETTINGS, rig.now) == rig.now
    assert not readers.begin_create(1, "g", SETTINGS, rig.now)
    with pytest.raises(ReaderExists):
        readers.begin_create(1, "g", SETTINGS._replace(max_failures=4), rig.now)
    for at in range(GROUPS_MAX - 1):
        make(rig, f"g{at}")
    with pytest.raises(OverLimit, match="100 reader groups"):
        make(rig, "one more")
    for at in range(MEMBERS_MAX):
        readers.join(1, "g", f"m{at}", [0], rig.now)
    with pytest.raises(OverLimit, match="256 members"):
        readers.join(1, "g", "one more", [0], rig.now)
    readers.delete_reader(1, "g", rig.now)
    with pytest.raises(ReaderDoesNotExist):
        readers.reader(1, "g")
    rig.check()
    rig.shard.close_queue(1, 2, rig.now)
    rig.check()


# --- the model --------------------------------------------------------------------------------------------


class Model:
    """One group over two shards: what is committed on each, and which epoch each has seen from whom."""

    def __init__(self) -> None:
        self.committed = [0, 0]
        self.seen: list[tuple[int, str]] = [(0, ""), (0, "")]

    def refuses(self, shard: int, member: str, epoch: int) -> bool:
        seen, by = self.seen[shard]
        return epoch < seen or (epoch == seen and by not in ("", member))


@pytest.mark.parametrize("seed", range(25))
def test_a_group_over_two_shards_is_as_the_model_says(seed: int) -> None:
    """Members join, leave, fall silent, fetch and commit with whatever epoch they last heard of; owners restart, and
    logs lose their front. No commit is lost, no stale one accepted, and at any epoch a shard has one reader."""
    random = Random(seed)
    rigs = [Bench(number) for number in (0, 1)]
    model = Model()
    made_ms = rigs[0].now
    for shard, rig in enumerate(rigs):
        rig.queue(1, retain_ms=HOUR_MS)
        rig.shard.reader_commands.set_reader(1, "g", made_ms, SETTINGS, Start("start"), made_ms, False, rig.now)
        model.seen[shard] = (made_ms, "")
    known: dict[str, tuple[int, Sequence[int]]] = {}  # member → the epoch and the shards that it heard of last
    owners: dict[tuple[int, int], str] = {}  # (epoch, shard) → the member that was told it has the shard
    top_epoch = made_ms
    for _ in range(120):
        coordinator = rigs[0].shard.reader_commands
        member = f"m{random.randrange(4)}"
        shard = random.randrange(2)
        rig, readers = rigs[shard], rigs[shard].shard.reader_commands
        done = random.random()
        if done < 0.2:
            rig.send(1, *("body" for _ in range(random.randrange(1, 5))))
        elif done < 0.35:
            given = coordinator.join(1, "g", member, [0, 1], rigs[0].now)
            known[member] = (given.epoch, given.shards)
            assert given.epoch >= top_epoch
            top_epoch = given.epoch
            for mine in given.shards:
                assert owners.setdefault((given.epoch, mine), member) == member, "two members were given one shard"
        elif done < 0.4:
            coordinator.leave(1, "g", member, [0, 1], rigs[0].now)
        elif done < 0.75 and member in known:
            epoch, shards = known[member]
            if shard not in shards:
                continue
            retained = positions(rig)
            wanted = random.choice(retained) if retained else 0
            stale = model.refuses(shard, member, epoch)
            try:
                if done < 0.5:
                    assert readers.begin_fetch(1, "g", member, epoch, rig.now).position == model.committed[shard]
                else:
                    readers.commit_reader(1, "g", member, epoch, wanted, rig.now)
                    if wanted <= model.committed[shard]:
                        assert not stale
                        continue  # a commit that changes nothing does not raise the epoch either
                    model.committed[shard] = wanted
            except StaleMember:
                assert stale
            else:
                assert not stale
                model.seen[shard] = (epoch, member)
        elif done < 0.85:
            for each in rigs:
                each.later(random.choice((10, 20_000, 40_000)))
        elif done < 0.95:
            rig.commit()
            rig.restart(random.choice((rig.replayed, rig.loaded))())
        else:
            rig.commit()
            boundary = min(rig.shard.retained_front(rig.now), rig.next_frame - 1)
            if boundary > min(rig.frames):
                rig.truncate(boundary)
        for number, each in enumerate(rigs):
            each.check()
            reader = each.shard.reader(1, "g")
            assert reader.position == model.committed[number]


def test_every_refusal_is_an_error_that_a_client_understands() -> None:
    for error in (StaleMember, ReaderExists, ReaderDoesNotExist, NotRetained, PositionInvalid):
        assert issubclass(error, BatonError) and 400 <= error.status < 500 and not error.retryable
