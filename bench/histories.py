"""Large histories, quickly: logs of a data directory, written by the core and the log of the broker itself.

python -m bench.histories DIRECTORY --events 5000000

A few hundred messages a second for some hours, on two shards with four queues each: jobs in large runs, mail with
attributes, priorities, delays and keys, a ledger in FIFO groups, and news that run out. Workers acknowledge, fail with
an error class, die with a lease in hand, are late; dead letters are redriven now and then; halfway the broker restarts
with leases held. The same seed gives the same bytes. Nothing is synced: this is no broker, only its history.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from batonq.core.commands import ChangeVisibility, Delete, Failing, Job, Nack, Receive, Send
from batonq.core.payload import Attribute, Content, encode_attributes
from batonq.core.policy import QueuePolicy
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError
from batonq.log import layout
from batonq.log.disk import RealDisk, create_directory, write_atomically
from batonq.log.file_log import FileLog, FileLogSettings
from batonq.log.frames import build

SHARDS = 2
TENANT = "000000000000"
_CLUSTER = 0xBA70
_T0 = 1_700_000_000_000
_STEP_MS = 8_000
_JOBS, _MAIL, _LEDGER, _NEWS = 400, 30, 20, 30  # messages sent per step
_SEGMENT_BYTES = 64 << 20
_ERRORS = (("Timeout", "upstream took too long"), ("ValueError", "no such order"), ("ConnectionError", "refused"))
_KINDS = [
    encode_attributes([Attribute("kind", "String", kind, False), Attribute("tries", "Number", b"3", False)])
    for kind in (b"welcome", b"receipt", b"reminder")
]


def _digest(body: bytes) -> bytes:
    return hashlib.md5(body, usedforsecurity=False).digest()


class Queues(NamedTuple):
    """The numbers of a shard's queues."""

    jobs: int
    mail: int
    ledger: int
    news: int
    dead: int


class _UnsyncedDisk(RealDisk):
    def fdatasync(self, handle: int) -> None:
        """Not needed: the data can be recreated after a crash."""

    def fsync_directory(self, path: str) -> None:
        """Not needed either."""


class _ShardHistory:
    """One shard and its log, in steps of a few seconds."""

    def __init__(self, directory: str, number: int, seed: int) -> None:
        self.rows = 0
        self._chance = random.Random(seed * 1_000 + number)
        self._log = FileLog.open(
            layout.log_directory(directory, number),
            shard=number,
            cluster=_CLUSTER,
            settings=FileLogSettings(segment_bytes=_SEGMENT_BYTES, background=False),
            disk=_UnsyncedDisk(),
            now_ms=lambda: _T0,
        )
        self._shard = Shard(number)
        self._shard.begin_frame(1)
        self._now = _T0
        self._step = 0
        first = 1 + number * len(Queues._fields)
        self._queues = Queues(*range(first, first + len(Queues._fields)))
        self._held: list[tuple[int, int, Sequence[tuple[int, int, int]]]] = []  # due at, queue, what is held
        self._shard.take_ownership(1, self._now, 0)
        self._set_policies(number)

    def _set_policies(self, number: int) -> None:
        own, shard = self._queues, self._shard
        dead: dict[str, Any] = {"max_receives": 3, "dead_letter_queue": own.dead, "dead_letter_shard": number}
        for policy in (
            QueuePolicy(own.dead, TENANT, f"dead-{number}"),
            QueuePolicy(own.jobs, TENANT, f"jobs-{number}", dead_letter_on_failure=True, **dead),
            QueuePolicy(own.mail, TENANT, f"mail-{number}", visibility_ms=20_000, **dead),
            QueuePolicy(own.ledger, TENANT, f"ledger-{number}.fifo", fifo=True),
            QueuePolicy(own.news, TENANT, f"news-{number}", retention_ms=60_000),
        ):
            shard.set_policy(policy, self._now)
        self._seal()

    def step(self) -> None:
        self._step += 1
        self._finish_due()
        self._send_plain(self._queues.jobs, _JOBS, 100)
        self._send_mail()
        self._send_ledger()
        self._send_plain(self._queues.news, _NEWS, 40)
        self._pass(300)
        own = self._queues
        for queue, count in ((own.jobs, _JOBS), (own.mail, _MAIL), (own.ledger, _LEDGER), (own.news, _NEWS - 9)):
            self._receive(queue, count + count // 8)
        self._pass(200)
        self._finish_due()
        if self._step % 100 == 0:
            self._redrive()
        self._shard.step_jobs(self._now)
        self._pass(_STEP_MS - 500)

    def restart(self) -> None:
        """A new owner after half a minute, which extends leases by that time."""
        self._now += 30_000
        self._shard.take_ownership(2, self._now, 30_000)
        self._seal()

    def close(self) -> None:
        self._log.note()
        self._log.close()

    # --- producers ----------------------------------------------------------------------------------

    def _send_plain(self, queue: int, count: int, size: int) -> None:
        start = self._step * count
        bodies = [(b'{"job":%d,"pad":"' % (start + index)).ljust(size - 2, b"x") + b'"}' for index in range(count)]
        self._send(Send(queue, bodies, sender="producer@10.0.0.7", content=Content.JSON))

    def _send_mail(self) -> None:
        indices = range(_MAIL)
        bodies = [b'{"letter":%d}' % (self._step * _MAIL + index) for index in indices]
        self._send(
            Send(
                self._queues.mail,
                bodies,
                [*map(_digest, bodies)],
                sender="web@10.0.0.8",
                content=Content.JSON,
                attributes=[_KINDS[index % 3] for index in indices],
                priorities=[5 if index % 10 == 0 else 0 for index in indices],
                delays_ms=[self._chance.choice((3_000, 40_000)) if index % 7 == 0 else None for index in indices],
                dedup_ids=[f"mail-{self._step}-{index % 15}" if index % 4 == 0 else "" for index in indices],
                traces=[f"Root=1-{self._step:08x}" if index % 5 == 0 else "" for index in indices],
            )
        )

    def _send_ledger(self) -> None:
        indices = range(_LEDGER)
        bodies = [b'{"entry":%d}' % (self._step * _LEDGER + index) for index in indices]
        self._send(
            Send(
                self._queues.ledger,
                bodies,
                [*map(_digest, bodies)],
                sender="bank@10.0.0.9",
                content=Content.JSON,
                groups=[f"account-{self._chance.randrange(200)}" for _ in indices],
                dedup_ids=[f"entry-{self._step}-{index}" for index in indices],
            )
        )

    def _send(self, command: Send) -> None:
        (sent,) = self._shard.send([command], self._now)
        for result in sent.each:
            if isinstance(result, BatonError):
                raise result
        self._pass(self._chance.randrange(1, 40))

    # --- workers ------------------------------------------------------------------------------------

    def _receive(self, queue: int, wanted: int) -> None:
        """Up to so many: ten at a time where messages differ in priority or group, else at once."""
        most = 10 if queue in (self._queues.mail, self._queues.ledger) else wanted
        holder = f"worker-{self._chance.randrange(40)}"
        while wanted > 0:
            (leases,) = self._shard.receive([Receive(queue, min(wanted, most), None, holder)], self._now)
            if isinstance(leases, BatonError):
                raise leases
            claims = leases.claims()
            if not claims:
                return
            wanted -= len(claims)
            self._held.append((self._now + self._chance.choice((0, 0, 0, 12_000)), queue, claims))
            self._pass(self._chance.randrange(1, 30))

    def _finish_due(self) -> None:
        due = [one for one in self._held if one[0] <= self._now]
        self._held = [one for one in self._held if one[0] > self._now]
        for _, queue, claims in due:
            self._finish(queue, claims)

    def _finish(self, queue: int, claims: Sequence[tuple[int, int, int]]) -> None:
        """Most are acknowledged; a few at the end of the batch fare otherwise."""
        chance, shard = self._chance, self._shard
        failed: list[tuple[int, int, int]] = []
        failings: list[Failing] = []
        kept = len(claims)
        while kept and chance.random() < (0.85 if len(claims) - kept < len(claims) // 25 else 0.4):
            kept -= 1
            claim, fate = claims[kept], chance.random()
            if fate < 0.65:
                name, text = chance.choice(_ERRORS)
                failed.append(claim)
                failings.append(Failing(chance.choice((0, 0, 5_000)), text, name))
            elif fate < 0.75:
                failed.append(claim)
                failings.append(Failing(0, "cannot be read", "Poison", dead_letter=queue != self._queues.ledger))
            elif fate < 0.85:
                shard.change_visibility(ChangeVisibility(queue, [claim], [45_000]), self._now)
            elif fate < 0.95:
                self._held.append((self._now + chance.choice((21_000, 31_000)), queue, [claim]))
        if failed:
            shard.nack(Nack(queue, failed, failings), self._now)
            self._pass(self._chance.randrange(1, 10))
        if kept:
            shard.delete([Delete(queue, claims[:kept])], self._now)
        self._pass(self._chance.randrange(1, 20))

    def _redrive(self) -> None:
        source = self._queues.dead
        if self._shard.jobs.active_on(source) is None:
            job = Job(f"job-{self._step}", source, 0, self._shard.number, 500, "RUNNING", self._now, 0)
            self._shard.start_job(job, self._now)

    # --- the log ------------------------------------------------------------------------------------

    def _pass(self, ms: int) -> None:
        """Commit the decisions and advance the time."""
        self._now += ms
        if self._shard.frame.row_count:
            self._seal()

    def _seal(self) -> None:
        log, shard = self._log, self._shard
        rows, variable = shard.seal()
        frame = build(
            cluster=_CLUSTER,
            region=0,
            shard=shard.number,
            epoch=shard.epoch,
            number=log.next,
            time_ms=shard.last_time_ms,
            previous_digest=log.tail_digest,
            rows=rows,
            variable=variable,
        )
        log.append(frame, _committed)
        self.rows += frame.row_count
        shard.begin_frame(log.next)


def _committed(error: BaseException | None) -> None:
    if error is not None:
        raise error


def make(directory: str, events: int, *, seed: int = 1, shards: int = SHARDS) -> int:
    """Fill a new data directory with about this many events. Returns the exact number."""
    disk = _UnsyncedDisk()
    create_directory(disk, directory)
    identity = json.dumps({"cluster": f"{_CLUSTER:016x}", "created_ms": _T0}).encode() + b"\n"
    write_atomically(disk, os.path.join(directory, layout.IDENTITY), (identity,))
    parts = [(directory, number, seed, events // shards) for number in range(shards)]
    with ProcessPoolExecutor(min(shards, os.cpu_count() or 1), get_context("spawn")) as processes:
        return sum(processes.map(_make_shard, *zip(*parts, strict=True)))


def _make_shard(directory: str, number: int, seed: int, events: int) -> int:
    history = _ShardHistory(directory, number, seed)
    while history.rows < events // 2:
        history.step()
    history.restart()
    while history.rows < events:
        history.step()
    history.close()
    return history.rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the logs of a broker's busy hours.")
    parser.add_argument("directory", type=Path, help="a data directory that does not exist yet")
    parser.add_argument("--events", type=int, default=1_000_000, help="approximate number (default 1,000,000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the history (default 1)")
    parser.add_argument("--shards", type=int, default=SHARDS, help=f"number of logs (default {SHARDS})")
    options = parser.parse_args()
    if options.directory.exists():
        parser.error(f"{options.directory} already exists")
    started = time.perf_counter()
    events = make(str(options.directory), options.events, seed=options.seed, shards=options.shards)
    spent = time.perf_counter() - started
    print(f"{events:,} events in {options.directory}, {events / spent:,.0f} per second")


if __name__ == "__main__":
    main()
