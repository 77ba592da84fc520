"""Real processes: servers are killed with SIGKILL while members of a reader group fetch, commit and come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from batonq.client import Deduplication
from batonq.errors import BatonError
from batonq.sync import Baton
from tests.cluster.processes import Cluster, wait_until
from tests.support.nats import nats_servers
from tests.system.process import ServerProcess

PATIENCE_S = 90.0
GROUP = "audit"
RETRIES = 1  # the threads try again themselves, and must end soon after a server does


class Story:
    """What was sent, processed and committed, as far as somebody was told so."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.sent: set[int] = set()
        self.processed: set[int] = set()
        self.order: dict[str, list[int]] = {}  # message group → numbers in the order of their first processing
        self.committed: dict[int, int] = {}  # shard → the highest position whose commit was answered
        self.problems: list[BaseException] = []

    def note(self, group: str, number: int) -> None:
        with self.lock:
            if number not in self.processed:
                self.processed.add(number)
                self.order.setdefault(group, []).append(number)


def produce(url: str, story: Story) -> None:
    with Baton(url, retries=RETRIES) as baton:
        queue = baton.queue("line.fifo")
        number = 0
        while not story.over.is_set():
            group = "abcdefgh"[number % 8]
            try:
                queue.send(number, group=group, dedup_key=str(number), batch=False)
                story.sent.add(number)
            except BatonError:
                time.sleep(0.1)
                continue
            number += 1
            time.sleep(0.005)


def read(url: str, story: Story, member: str) -> None:
    with Baton(url, retries=RETRIES) as baton:
        while not story.over.is_set():
            reader = baton.queue("line.fifo").reader(GROUP, member=member)
            try:
                for _ in range(20):  # then it leaves, and joins again: a rebalance
                    for message in reader.fetch(20, wait=0.2):
                        story.note(message.group or "", message.body)
                        reader.commit(message)
                        shard, _, position = message.position.partition(":")
                        with story.lock:
                            story.committed[int(shard)] = max(story.committed.get(int(shard), 0), int(position))
                reader.leave()
            except BatonError:
                time.sleep(0.2)
            except BaseException as problem:
                story.problems.append(problem)
                raise


def positions(url: str) -> dict[int, int]:
    with Baton(url) as baton:
        info = baton.queue("line.fifo").reader(GROUP).info()
    return {shard.shard: int(shard.committed.partition(":")[2]) for shard in info.shards}


@contextmanager
def running(url: str, story: Story) -> Iterator[None]:
    threads = [
        threading.Thread(target=produce, args=(url, story)),
        *(threading.Thread(target=read, args=(url, story, name)) for name in ("one", "two")),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        story.over.set()
        for thread in threads:
            thread.join(PATIENCE_S)


def prepare(url: str, spread: int) -> None:
    with Baton(url) as baton:
        per_group = Deduplication(per_group=True)
        queue = baton.create_queue("line.fifo", fifo=True, retain=3600, spread=spread, deduplication=per_group)
        queue.reader(GROUP).create(session=3)


def more(story: Story, count: int) -> None:
    """Wait until so many more messages are processed."""
    goal = len(story.processed) + count
    wait_until(lambda: len(story.processed) >= goal or bool(story.problems), "the group stands still", PATIENCE_S)


def check(url: str, story: Story) -> None:
    """After the load: nothing was lost, no commit went back, and order was kept."""
    assert not story.problems
    now = positions(url)
    assert all(now[shard] >= position for shard, position in story.committed.items()), (now, story.committed)
    with Baton(url) as baton:
        last = baton.queue("line.fifo").reader(GROUP, member="last")
        ends = time.monotonic() + PATIENCE_S
        while last.info().lag_messages and time.monotonic() < ends:
            for message in last.fetch(500, wait=0.5):
                story.note(message.group or "", message.body)
                last.commit(message)
        assert last.info().lag_messages == 0
    assert story.sent <= story.processed
    for numbers in story.order.values():
        assert numbers == sorted(numbers), "messages of a group were processed out of order"


def test_owners_are_killed_while_a_group_reads(tmp_path: Path) -> None:
    with nats_servers(1) as nats:
        log = f"{nats.address}/readers?replicas=1&{nats.monitoring}"
        with Cluster(tmp_path, log, "--shards", "3", "--hold-s", "3600", nodes=3) as cluster:
            asked = cluster.nodes[0]
            prepare(asked.url, 3)
            story = Story()
            with running(asked.url, story):
                more(story, 50)
                for _ in range(2):
                    victim = next(node for shard in range(3) if (node := cluster.owner(shard)) is not asked)
                    before = dict(story.committed)
                    victim.kill()
                    more(story, 50)
                    now = positions(asked.url)
                    assert all(now[shard] >= position for shard, position in before.items())
                    victim.start()
                    cluster.wait_ready(victim)
            check(asked.url, story)


@pytest.mark.parametrize("kills", [3])
def test_a_single_server_is_killed_while_a_group_reads(tmp_path: Path, kills: int) -> None:
    story = Story()
    server = ServerProcess(tmp_path, "--dev")
    prepare(server.url, 1)
    for _ in range(kills):
        story.over.clear()
        with running(server.url, story):
            more(story, 40)
            server.kill()
        server = ServerProcess(tmp_path, "--dev")
        now = positions(server.url)
        assert all(now[shard] >= position for shard, position in story.committed.items()), (now, story.committed)
        story.over.clear()
    with server:
        check(server.url, story)
