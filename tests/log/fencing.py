"""What every replicated log must do when owners change, answers get lost and mirrors fail, whatever keeps it.

A far side joins by a class that inherits FencingSuite and gives it a `world`. Everything goes through a real backend;
`Meddler` stands between it and the log and loses, delays or doubles what is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

from batonq.errors import Fenced, LogCorrupt, LogError, LogGap
from batonq.log.backend import Backend, Bounds, Entry, Unreachable, WrongEnd
from batonq.log.fencing import Behind
from batonq.log.frames import Frame
from batonq.log.opening import Start
from batonq.log.replicated_log import MirrorDamaged, MirroredLog
from tests.log.replicated import SMALL, WAIT_S
from tests.support.driven import Loop
from tests.support.logs import CLUSTER, next_frame

T = TypeVar("T")


class Far(Protocol):
    async def backend(self) -> Backend: ...
    async def flip(self, number: int) -> None:
        """Change one stored frame."""

    async def lose(self, number: int) -> None:
        """Forget one frame in between."""

    async def lose_last(self) -> None:
        """Forget the last frame as if it had never been stored."""

    async def close(self) -> None: ...


class Meddler:
    """A backend on which the next append meets what the test asks for, and then it is an honest one again."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.shard = inner.shard
        self.where = inner.where
        self.frame_bytes_max = inner.frame_bytes_max
        self.next: list[Callable[[Frame], Awaitable[None]]] = []
        self.late: list[Frame] = []
        self.first_bounds: Callable[[Bounds], Awaitable[Bounds]] | None = None  # what becomes of the first answer
        self.appends = 0

    async def append(self, frame: Frame) -> None:
        self.appends += 1
        await (self.next.pop(0) if self.next else self.inner.append)(frame)

    async def lost(self, frame: Frame) -> None:
        raise Unreachable("the request was lost")

    async def unanswered(self, frame: Frame) -> None:
        await self.inner.append(frame)
        raise Unreachable("the answer was lost")

    async def delayed(self, frame: Frame) -> None:
        self.late.append(frame)
        raise Unreachable("no answer yet")

    async def doubled(self, frame: Frame) -> None:
        outcomes = await asyncio.gather(self.inner.append(frame), self.inner.append(frame), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "WrongEnd"]
        raise Unreachable("one of two answers came")

    async def deliver_late(self) -> list[BaseException | None]:
        late, self.late = self.late, []
        return await asyncio.gather(*map(self.inner.append, late), return_exceptions=True)

    async def bounds(self) -> Bounds:
        bounds = await self.inner.bounds()
        change, self.first_bounds = self.first_bounds, None
        return bounds if change is None else await change(bounds)

    async def find(self, number: int) -> bytes | None:
        return await self.inner.find(number)

    def tail(self, start: int) -> AsyncGenerator[list[Entry], None]:
        return self.inner.tail(start)

    async def drop_front(self, before: int) -> None:
        await self.inner.drop_front(before)

    async def close(self) -> None:
        await self.inner.close()


class World:
    """Nodes that share a far side, each with a mirror of its own."""

    def __init__(self, far: Far, directory: Path) -> None:
        self.far = far
        self.directory = directory
        self._loop = Loop()
        self._logs: list[MirroredLog] = []

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(asyncio.wait_for(work, 2 * WAIT_S))

    async def open(
        self,
        node: str,
        on_frame: Callable[[Frame], None] | None = None,
        start: Start | None = None,
        first_bounds: Callable[[Bounds], Awaitable[Bounds]] | None = None,
    ) -> tuple[MirroredLog, Meddler]:
        meddler = Meddler(await self.far.backend())
        meddler.first_bounds = first_bounds
        log = await MirroredLog.open(
            meddler, self.mirror(node), cluster=CLUSTER, settings=SMALL, start=start, on_frame=on_frame
        )
        self._logs.append(log)
        return log, meddler

    def mirror(self, node: str) -> str:
        return str(self.directory / node)

    async def stored(self) -> list[Frame]:
        """The whole log as a node sees it that has never seen it before."""
        found: list[Frame] = []
        log, _ = await self.open(f"reader-{len(self._logs)}", found.append)
        await shut(log)
        return found

    def close(self) -> None:
        self._loop.run(self._close())
        self._loop.close()

    async def _close(self) -> None:
        for log in self._logs:
            await shut(log)
        await self.far.close()


async def shut(log: MirroredLog) -> None:
    log.close()
    await log.wait_closed()


async def left_behind(world: World) -> MirroredLog:
    """An owner that has gone on since the node `away` left, whose mirror has the first frame only."""
    owner, _ = await world.open("owner")
    away, _ = await world.open("away")
    await append(owner, epoch=1)
    await away.catch_up(lambda frame: None)
    await shut(away)
    for _ in range(50):
        await append(owner, bytes(300))
    return owner


async def append(log: MirroredLog, body: bytes = b"", epoch: int | None = None) -> Frame:
    frame = next_frame(log, body, epoch=epoch)
    await sent(log, frame)
    return frame


async def sent(log: MirroredLog, frame: Frame) -> None:
    outcome: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    log.append(frame, lambda error: outcome.set_result(error) if not outcome.done() else None)
    error = await asyncio.wait_for(outcome, WAIT_S)
    if error is not None:
        raise error


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - of any kind
            await asyncio.sleep(0.005)


class FencingSuite:
    # --- owners

    def test_a_stale_owner_is_fenced_and_takes_nothing_more(self, world: World) -> None:
        async def run() -> None:
            old, _ = await world.open("old")
            written = [await append(old, b"%d" % at, epoch=1) for at in range(3)]
            new, _ = await world.open("new")
            written.append(await append(new, b"mine now", epoch=2))
            for _ in range(2):
                with pytest.raises(LogError) as refused:
                    await append(old, b"stale", epoch=1)
            assert isinstance(old._failed, Fenced) and "accepts nothing more" in refused.value.message
            written.append(await append(new, b"and still", epoch=2))
            assert await world.stored() == written

        world.run(run())

    def test_a_stale_owner_is_fenced_however_far_the_new_one_has_gone(self, world: World) -> None:
        async def run() -> None:
            old, _ = await world.open("old")
            await append(old, epoch=1)
            new, _ = await world.open("new")
            for _ in range(60):
                await append(new, bytes(300), epoch=2)
            new.drop_front(new.next - 5)
            await until(lambda: new._upkeep is None)
            with pytest.raises(Fenced, match="truncated past"):
                await append(old, b"stale", epoch=1)

        world.run(run())

    def test_a_new_owner_that_has_not_caught_up_cannot_begin(self, world: World) -> None:
        async def run() -> None:
            old, _ = await world.open("old")
            await append(old, epoch=1)
            new, _ = await world.open("new")
            late = await append(old, b"one more", epoch=1)
            with pytest.raises(Behind):
                await append(new, b"epoch", epoch=2)
            await shut(new)
            seen: list[Frame] = []
            again, _ = await world.open("new", seen.append)
            assert seen[-1] == late
            await append(again, b"epoch", epoch=2)
            with pytest.raises(Fenced):
                await append(old, b"stale", epoch=1)

        world.run(run())

    def test_of_two_that_begin_under_the_same_epoch_one_wins(self, world: World) -> None:
        async def run() -> None:
            logs = [(await world.open(node))[0] for node in ("left", "right")]
            frames = [next_frame(log, b"%d" % at, epoch=1) for at, log in enumerate(logs)]
            outcomes = await asyncio.gather(*map(sent, logs, frames), return_exceptions=True)
            assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Fenced", "NoneType"]
            assert await world.stored() == [frames[outcomes.index(None)]]

        world.run(run())

    # --- answers that do not come

    @pytest.mark.parametrize(
        "troubles",
        [
            ["unanswered"],
            ["lost"],
            ["lost", "unanswered", "lost"],
            ["delayed", "unanswered"],
            ["delayed", "delayed"],
            ["doubled"],
        ],
        ids="-".join,
    )
    def test_whatever_happens_to_an_append_it_is_committed_once(self, world: World, troubles: list[str]) -> None:
        async def run() -> None:
            log, meddler = await world.open("owner")
            written = [await append(log, b"before", epoch=1)]
            meddler.next = [getattr(meddler, trouble) for trouble in troubles]
            written.append(await append(log, b"in trouble"))
            assert meddler.appends > len(troubles)
            late = await meddler.deliver_late()
            assert all(isinstance(outcome, WrongEnd) for outcome in late) and len(late) == troubles.count("delayed")
            written.append(await append(log, b"after"))
            assert log.trouble == ""
            assert await world.stored() == written == list(log.frames(1))

        world.run(run())

    def test_a_late_frame_of_an_owner_that_is_gone_is_seen_by_the_next(self, world: World) -> None:
        async def run() -> None:
            old, meddler = await world.open("old")
            written = [await append(old, epoch=1)]
            late = await self._left_under_way(old, meddler)
            new, _ = await world.open("new")
            assert new.next == 2
            assert await meddler.deliver_late() == [None]
            with pytest.raises(Behind):
                await append(new, b"epoch", epoch=2)
            await shut(new)
            new, _ = await world.open("new")
            written += [late, await append(new, b"epoch", epoch=2)]
            assert await world.stored() == written

        world.run(run())

    def test_a_late_frame_that_comes_after_the_new_owner_is_refused(self, world: World) -> None:
        async def run() -> None:
            old, meddler = await world.open("old")
            written = [await append(old, epoch=1)]
            await self._left_under_way(old, meddler)
            new, _ = await world.open("new")
            written.append(await append(new, b"epoch", epoch=2))
            (outcome,) = await meddler.deliver_late()
            assert isinstance(outcome, WrongEnd)
            written.append(await append(new, b"more"))
            assert await world.stored() == written

        world.run(run())

    async def _left_under_way(self, log: MirroredLog, meddler: Meddler) -> Frame:
        """An append whose first sending is late, and whose owner is closed before it sends again."""
        frame = next_frame(log, b"late")
        meddler.next = [meddler.delayed, *[meddler.lost] * 1000]
        outcomes: list[BaseException | None] = []
        log.append(frame, outcomes.append)
        await until(lambda: bool(meddler.late))
        await shut(log)
        assert isinstance(outcomes[0], LogError) and "may or may not" in str(outcomes[0])
        return frame

    def test_an_owner_that_hears_nothing_says_so_and_waits(self, world: World) -> None:
        async def run() -> None:
            log, meddler = await world.open("owner")
            meddler.next = [meddler.lost] * 8
            appending = asyncio.ensure_future(append(log, epoch=1))
            await until(lambda: log.trouble == "the request was lost")
            await appending
            assert log.trouble == "" and log.next == 2

        world.run(run())

    # --- followers

    def test_a_follower_sees_every_frame_and_can_take_over(self, world: World) -> None:
        async def run() -> None:
            owner, _ = await world.open("owner")
            written = [await append(owner, b"%d" % at, epoch=1) for at in range(20)]
            seen: list[Frame] = []
            problems: list[BaseException] = []
            follower, _ = await world.open("follower", seen.append)
            follower.follow(seen.append, problems.append)
            written += [await append(owner, b"%d" % at * 50) for at in range(100)]
            await until(lambda: len(seen) == len(written))
            assert seen == written == list(follower.frames(1))
            written += [await append(owner, b"last words")]
            await follower.catch_up(seen.append)
            assert seen == written
            written.append(await append(follower, b"epoch", epoch=2))
            with pytest.raises(Fenced):
                await append(owner, b"stale")
            assert not problems
            assert await world.stored() == written

        world.run(run())

    def test_a_follower_drops_what_the_owner_dropped(self, world: World) -> None:
        async def run() -> None:
            owner, _ = await world.open("owner")
            follower, _ = await world.open("follower")
            problems: list[BaseException] = []
            follower.follow(lambda frame: None, problems.append)
            for _ in range(50):
                await append(owner, bytes(300), epoch=1)
            await until(lambda: follower.next == owner.next)
            owner.drop_front(owner.next - 10)
            await until(lambda: owner._upkeep is None and owner._dropped == owner.first > 1)
            follower._looked_s = -1e9
            follower.tick()
            await until(lambda: follower.first == owner.first)
            assert not problems and list(follower.frames(follower.first)) == list(owner.frames(owner.first))

        world.run(run())

    def test_a_node_that_was_away_while_the_front_was_dropped_begins_anew(self, world: World) -> None:
        async def run() -> None:
            owner = await left_behind(world)
            owner.drop_front(owner.next - 5)
            await until(lambda: owner._upkeep is None and owner._dropped > 2)
            with pytest.raises(LogGap):
                await world.open("away")
            seen: list[Frame] = []
            again, _ = await world.open("away", seen.append)
            assert seen == list(owner.frames(owner.first)) == list(again.frames(again.first))
            assert again.first == owner.first

        world.run(run())

    def test_a_front_that_is_dropped_while_a_node_opens_is_no_damage(self, world: World) -> None:
        """Found by the simulator: the node looked for its last frame in vain, and said that the log was damaged."""

        async def run() -> None:
            owner = await left_behind(world)

            async def dropped(bounds: Bounds) -> Bounds:
                owner.drop_front(owner.next - 5)
                await until(lambda: owner._upkeep is None and owner._dropped > 2)
                return bounds

            with pytest.raises(LogGap):
                await world.open("away", first_bounds=dropped)
            again, _ = await world.open("away")
            assert list(owner.frames(owner.first)) == list(again.frames(again.first))

        world.run(run())

    # --- the mirror

    def test_a_stale_answer_about_a_log_whose_mirror_is_damaged_is_not_believed(self, world: World) -> None:
        """Found by the simulator: what the mirror still had was handed on, and then the log seemed to be shorter."""

        async def run() -> None:
            log, _ = await world.open("node")
            written = [await append(log, b"%d" % at * 100, epoch=1) for at in range(40)]
            await shut(log)
            self._cut_middle(Path(world.mirror("node")))

            async def stale(bounds: Bounds) -> Bounds:
                return bounds._replace(next=1)

            seen: list[Frame] = []
            log, _ = await world.open("node", seen.append, first_bounds=stale)
            assert seen == written == list(log.frames(1))

        world.run(run())

    def test_a_mirror_that_is_lost_or_damaged_is_built_anew(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("node")
            written = [await append(log, b"%d" % at * 100, epoch=1) for at in range(40)]
            await shut(log)
            for harm in (self._remove, self._flip_first, self._cut_middle):
                harm(Path(world.mirror("node")))
                seen: list[Frame] = []
                log, _ = await world.open("node", seen.append)
                assert seen == written == list(log.frames(1)), harm.__name__
                await shut(log)
            log, _ = await world.open("node")
            written.append(await append(log, b"more"))
            assert await world.stored() == written

        world.run(run())

    @staticmethod
    def _segments(mirror: Path) -> list[Path]:
        return sorted(mirror.glob("segment-*.log"))

    def _remove(self, mirror: Path) -> None:
        for path in mirror.iterdir():
            path.unlink()

    def _flip_first(self, mirror: Path) -> None:
        path = self._segments(mirror)[0]
        data = bytearray(path.read_bytes())
        data[200] ^= 1
        path.write_bytes(data)

    def _cut_middle(self, mirror: Path) -> None:
        self._segments(mirror)[1].unlink()

    def test_damage_that_is_met_while_reading_is_mended_by_opening_again(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("node")
            written = [await append(log, b"%d" % at * 1000, epoch=1) for at in range(8)]
            await shut(log)
            log, _ = await world.open("node")
            self._flip_first(Path(world.mirror("node")))
            with pytest.raises(MirrorDamaged, match="rebuilt"):
                log.read_variable(1 << 16, 0, 10)
            with pytest.raises(LogError, match="accepts nothing more until it is reopened"):
                await append(log)
            await shut(log)
            log, _ = await world.open("node")
            assert list(log.frames(1)) == written

        world.run(run())

    def test_a_snapshot_of_what_the_log_never_had_is_not_taken(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("owner")
            first = await append(log, b"body", epoch=1)
            last = await append(log, b"body")
            seen: list[Frame] = []
            again, _ = await world.open("fresh", seen.append, Start(2, first.digest))
            assert seen == [last] and again.next == 3
            assert (await world.open("at-its-end", seen.append, Start(3, last.digest)))[0].next == 3
            for start, why in (
                (Start(3, first.digest), "not the frame"),
                (Start(9, last.digest), "snapshot of frame 8"),
            ):
                with pytest.raises(LogCorrupt, match=why):
                    await world.open("wrong", None, start)
            assert seen == [last]

        world.run(run())

    # --- the far side

    def test_a_frame_that_was_changed_is_seen_and_not_skipped(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("owner")
            for _ in range(5):
                await append(log, b"body", epoch=1)
            await world.far.flip(3)
            seen: list[Frame] = []
            with pytest.raises(LogCorrupt, match="number 3"):
                await world.open("other", seen.append)
            assert [frame.number for frame in seen] == [1, 2]

        world.run(run())

    def test_a_hole_is_seen_and_not_skipped(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("owner")
            for _ in range(5):
                await append(log, b"body", epoch=1)
            await world.far.lose(3)
            seen: list[Frame] = []
            with pytest.raises(LogCorrupt, match=r"number 3|frame 3 is missing|were deleted"):
                await world.open("other", seen.append)
            assert [frame.number for frame in seen] in ([], [1, 2])

        world.run(run())

    def test_a_far_side_that_lost_what_it_acknowledged_is_found_out(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("owner")
            for _ in range(5):
                await append(log, b"body", epoch=1)
            await world.far.lose_last()
            with pytest.raises(LogCorrupt, match="lost acknowledged data"):
                await append(log, b"next")
            await shut(log)
            with pytest.raises(LogCorrupt, match="lost acknowledged data"):
                await world.open("owner")

        world.run(run())

    def test_a_history_that_was_replaced_is_found_out(self, world: World) -> None:
        async def run() -> None:
            log, _ = await world.open("owner")
            for _ in range(5):
                await append(log, b"body", epoch=1)
            await shut(log)
            await world.far.lose_last()
            other, _ = await world.open("other")
            await append(other, b"something else")
            with pytest.raises(LogCorrupt, match="not the frame that was committed"):
                await world.open("owner")

        world.run(run())
