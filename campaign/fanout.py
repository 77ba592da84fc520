"""Clients of topics, schedules, reader groups, replays and pauses, next to the load of a round.

Their queues retain their history, and nobody receives from them: in the end the histories have everything that came in.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from datetime import datetime
from itertools import count
from random import Random
from typing import Any

from batonq.errors import BatonError
from campaign.cluster import THRESHOLD_BYTES, Broken, Cluster
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
from campaign.load import RETRIES_S
from sim.history import Violation

RATE_S = 1
KEPT = 40
LARGE_EVERY = 4  # of the messages that are replayed, one in so many has its body in the payload store
REPLAYED_PER_S = 4  # slow enough that the fault happens while it runs
MEMBERS = ("reader-a", "reader-b")
SESSION_S = 5
GROUPS = 3
PAUSED_S = 3.0
SETTLE_S = 60.0
ANSWER_S = 8.0
LATE_S = 1.0  # a due time that has just passed may be about to be fired
GONE = {"job_conflict"}  # an earlier attempt, which was not answered, has started the job


class Refused(Exception):
    """A request was not answered, or with an error: its code."""


class FanOut:
    """`start` creates everything and begins, `finish` stops and returns the violations."""

    def __init__(self, cluster: Cluster, random: Random, round_number: int) -> None:
        first = f"f{round_number}"
        self._cluster = cluster
        self._random = random
        self._news, self._ordered = f"{first}-news", f"{first}-ordered.fifo"
        self._all, self._odd, self._line = f"{first}-all", f"{first}-odd", f"{first}-line.fifo"
        self._ticks, self._kept, self._again = f"{first}-ticks", f"{first}-kept", f"{first}-again"
        self._numbers = count(1)
        self._published: dict[str, list[int]] = {self._news: [], self._ordered: []}
        self._acknowledged: dict[str, list[int]] = {self._news: [], self._ordered: []}
        self._commits: list[Commit] = []
        self._fetched: set[str] = set()
        self._refused_members = 0
        self._first_due_ms = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.counts: dict[str, int] = {}

    async def start(self) -> None:
        for name, spec in (
            (self._all, {"spread": 2}),
            (self._odd, {}),
            (self._line, {"mode": "FIFO"}),
            (self._ticks, {}),
            (self._kept, {"spread": 2}),
            (self._again, {}),
        ):
            await self._insist("POST", "/v1/queues", {"name": name, "retainSeconds": 3600, **spec})
        for topic, mode in ((self._news, "STANDARD"), (self._ordered, "FIFO")):
            await self._insist("POST", "/v1/topics", {"name": topic, "mode": mode})
        subscriptions: tuple[tuple[str, str, dict[str, Any]], ...] = (
            (self._news, self._all, {}),
            (self._news, self._odd, {"filterPolicy": {"kind": ["odd"]}}),
            (self._ordered, self._line, {}),
        )
        for topic, queue, more in subscriptions:
            spec = {"queue": queue, "rawDelivery": True, **more}
            await self._insist("POST", f"/v1/topics/{topic}/subscriptions", spec)
        await self._insist("POST", f"/v1/queues/{self._all}/readers", {"name": "readers", "sessionSeconds": SESSION_S})
        kept = {"messages": [{"body": _kept(number)} for number in range(KEPT)]}
        await self._insist("POST", f"/v1/queues/{self._kept}/messages:batch", kept, key=self._kept)
        schedule = {"name": "often", "queue": self._ticks, "rateSeconds": RATE_S, "missed": "all"}
        made = await self._insist("POST", "/v1/schedules", {**schedule, "message": {"body": "tick"}})
        self._first_due_ms = made["nextAtMs"]
        replay = {"targetQueue": self._again, "maxMessagesPerSecond": REPLAYED_PER_S}
        await self._insist("POST", f"/v1/queues/{self._kept}:replay", replay)
        self._begin(self._publish(self._news), self._publish(self._ordered), self._pause())
        self._begin(*(self._read(member) for member in MEMBERS))

    def _begin(self, *work: Coroutine[Any, Any, None]) -> None:
        self._tasks += [asyncio.create_task(each) for each in work]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        ended = await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        for problem in ended:
            if isinstance(problem, Exception):
                raise Broken(f"a client failed: {problem!r}")

    async def finish(self) -> list[Violation]:
        """Wait until everything has arrived, and check it."""
        await self.stop()
        await self._insist("PATCH", f"/v1/queues/{self._odd}", {"paused": "none"})
        until_ms = int((time.time() - LATE_S) * 1000)
        give_up_s = time.monotonic() + SETTLE_S
        while True:
            violations = await self._check(until_ms)
            if not violations or time.monotonic() > give_up_s:
                return violations
            await asyncio.sleep(1.0)

    # --- clients --------------------------------------------------------------------------------

    async def _publish(self, topic: str) -> None:
        """One message after another, so that the order in each group is known."""
        while True:
            await asyncio.sleep(self._random.expovariate(1.0) * 0.15)
            number = next(self._numbers)
            message: dict[str, Any] = {"body": {"n": number}, "attributes": {"kind": "odd" if number % 2 else "even"}}
            if topic == self._ordered:
                message |= {"messageGroupId": f"group-{number % GROUPS}", "deduplicationKey": f"key-{number}"}
            self._published[topic].append(number)
            await self._insist("POST", f"/v1/topics/{topic}/messages", message, key=f"{topic}-{number}")
            self._acknowledged[topic].append(number)

    async def _pause(self) -> None:
        """Copies for a queue that does not accept messages wait in the topic."""
        while True:
            await asyncio.sleep(self._random.random() * PAUSED_S * 2)
            for paused in ("sends", "none"):
                await self._insist("PATCH", f"/v1/queues/{self._odd}", {"paused": paused})
                await asyncio.sleep(PAUSED_S * self._random.random())

    async def _read(self, member: str) -> None:
        """Join, fetch, commit; sometimes leave, or go on with an old epoch."""
        path = f"/v1/queues/{self._all}/readers/readers"
        epoch = 0
        held: list[str] = []
        while True:
            await asyncio.sleep(self._random.expovariate(1.0) * 0.3)
            chance = self._random.random()
            try:
                if not epoch or chance < 0.15:
                    epoch = (await self._once("POST", f"{path}:join", {"member": member}))["epoch"]
                elif chance < 0.2:
                    await self._once("POST", f"{path}:leave", {"member": member})
                elif chance < 0.35 and held:  # commit again, perhaps after another member got the shards
                    await self._commit(path, member, epoch, held)
                else:
                    held = await self._fetch(path, member, epoch, 20)
                    await self._commit(path, member, epoch, held)
            except Refused as problem:
                if str(problem) == "stale_member":
                    self._refused_members += 1
                    epoch = epoch if self._random.random() < 0.5 else 0  # some do not notice

    async def _fetch(self, path: str, member: str, epoch: int, limit: int) -> list[str]:
        """Returns the last position of each shard."""
        page = await self._once("POST", f"{path}:fetch", {"member": member, "epoch": epoch, "maxMessages": limit})
        positions = [message["position"] for message in page["messages"]]
        self._fetched.update(positions)
        return [*{position.partition(":")[0]: position for position in positions}.values()]

    async def _commit(self, path: str, member: str, epoch: int, positions: list[str]) -> None:
        if not positions:
            return
        started_s = time.monotonic()
        spec = {"member": member, "epoch": epoch, "positions": positions}
        done = await self._once("POST", f"{path}:commit", spec)
        ended_s = time.monotonic()
        for shard, position in map(_parsed, done["positions"]):
            self._commits.append(Commit(shard, epoch, position, started_s, ended_s))

    # --- the verdict ----------------------------------------------------------------------------

    async def _check(self, until_ms: int) -> list[Violation]:
        histories = {
            name: await self._history(name) for name in (self._all, self._odd, self._line, self._ticks, self._again)
        }
        violations: list[Violation] = []
        for topic, queue, is_matching in (
            (self._news, self._all, lambda number: True),
            (self._news, self._odd, lambda number: number % 2 == 1),
            (self._ordered, self._line, lambda number: True),
        ):
            copies = [Copy(one["body"]["n"], one.get("messageGroupId", "")) for one in histories[queue]]
            self.counts[f"copies in {queue}"] = len(copies)
            acknowledged, published = (
                {number for number in told[topic] if is_matching(number)}
                for told in (self._acknowledged, self._published)
            )
            violations += check_copies(queue, acknowledged, published, copies)
            if queue == self._line:
                violations += check_copies_in_order(queue, copies)
        dues = [_due_ms(one["attributes"]["scheduledTime"]) for one in histories[self._ticks]]
        violations += check_due_times(self._first_due_ms, RATE_S * 1000, until_ms, dues)
        violations += check_replay(range(KEPT), (one["body"]["n"] for one in histories[self._again]))
        violations += await self._check_group(histories[self._all])
        self.counts |= {"published": sum(map(len, self._acknowledged.values())), "firings": len(dues)}
        self.counts |= {"replayed": len(histories[self._again]), "commits": len(self._commits)}
        self.counts |= {"positions read": len(self._fetched), "stale members": self._refused_members}
        return violations

    async def _check_group(self, history: list[dict[str, Any]]) -> list[Violation]:
        """A last member reads to the end."""
        path = f"/v1/queues/{self._all}/readers/readers"
        try:
            joined = await self._once("POST", f"{path}:join", {"member": "the-last"})
            held = await self._fetch(path, "the-last", joined["epoch"], 500)
            await self._commit(path, "the-last", joined["epoch"], held)
        except Refused as problem:
            return [Violation("reader-read", f"the last member was refused: {problem}")]
        group = await self._insist("GET", path)
        now = dict(_parsed(shard["committed"]) for shard in group["shards"])
        violations = check_commits(self._commits, now)
        return violations + check_read(self._fetched, (one["position"] for one in history))

    async def _history(self, queue: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more = ""
        while True:
            page = await self._insist("GET", f"/v1/queues/{queue}/history?limit=500{more}")
            found += page["messages"]
            if not page.get("nextCursor"):
                return found
            more = f"&cursor={page['nextCursor']}"

    # --- requests -------------------------------------------------------------------------------

    async def _once(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """A request to any running node. Raises Refused."""
        nodes = [node for node in self._cluster.nodes if node.running] or self._cluster.nodes
        head = [("Content-Type", "application/json"), *([("Idempotency-Key", key)] if key else [])]
        data = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await self._random.choice(nodes).transport.request(method, path, data, head, ANSWER_S)
        except BatonError as problem:
            raise Refused(f"no answer: {problem.message}") from None
        told = json.loads(answer.body) if answer.body else {}
        if answer.status >= 300:
            raise Refused(told.get("code", str(answer.status)))
        return told

    async def _insist(self, method: str, path: str, body: Any = None, key: str = "") -> Any:
        """The same, until it succeeds."""
        give_up_s = time.monotonic() + RETRIES_S
        while True:
            try:
                return await self._once(method, path, body, key)
            except Refused as problem:
                if str(problem) in GONE:
                    return {}
                if time.monotonic() > give_up_s:
                    raise Broken(f"{method} {path} with {body} failed: {problem}") from None
            await asyncio.sleep(0.1 + 0.2 * self._random.random())


def _kept(number: int) -> dict[str, Any]:
    return {"n": number, **({} if number % LARGE_EVERY else {"more": "." * THRESHOLD_BYTES})}


def _parsed(position: str) -> tuple[int, int]:
    shard, _, number = position.partition(":")
    return int(shard), int(number)


def _due_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
