"""An application that writes to its outbox in many transactions, relays that are killed, and what must come out."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

from batonq.sync import Baton

PATIENCE_S = 900  # for all rows to be published, on a machine that has much else to do
LOOK_S = 0.02


@dataclass
class Written:
    """What the writers did."""

    committed: dict[str, int] = field(default_factory=dict)  # how many of each key
    rolled_back: int = 0


class Portions:
    """Rows that writers may commit: one portion, and another each time that `release` is called."""

    def __init__(self, rows: int, count: int) -> None:
        self.size = -(-rows // count)
        self._allowed = self.size
        self._begun = 0
        self._changed = threading.Condition()

    def take(self, rows: int) -> None:
        """Wait until so many more may be written; some more than the portion has, so that no transaction is cut."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._begun < self._allowed, PATIENCE_S)
            self._begun += rows

    def release(self) -> None:
        with self._changed:
            self._allowed += self.size
            self._changed.notify_all()


def write_postgres(
    dsn: str, queues: list[str], *, rows: int, keys: int, writers: int, seed: int, portions: Portions
) -> Written:
    """So many committed rows, by several writers at once, some of whose transactions are rolled back.

    Each key belongs to one writer, whose transactions commit one after the other, while those of others overlap; the
    number of a row in its key is its place in the order to be kept.
    """
    written = Written()
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        chance = random.Random(f"{seed}-{writer}")
        mine = [f"key-{number}" for number in range(writer, keys, writers)]
        numbers = dict.fromkeys(mine, 0)
        left = rows // writers
        with psycopg.connect(dsn) as connection:
            while left:
                size = min(left, chance.randint(50, 600))
                kept = chance.random() > 0.15
                if kept:
                    portions.take(size)
                trial = dict(numbers)
                with connection.cursor().copy("COPY batonq_outbox (queue, key, body) FROM STDIN") as copy:
                    for _ in range(size):
                        key = chance.choice(mine)
                        trial[key] += 1
                        body = {"key": key, "n": trial[key], "kept": kept}
                        copy.write_row((queues[hash_of(key) % len(queues)], key, json.dumps(body)))
                if kept:
                    connection.commit()
                    numbers, left = trial, left - size
                else:
                    connection.rollback()
                    written.rolled_back += size
        written.committed.update(numbers)

    def guarded(writer: int) -> None:
        try:
            write(writer)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    return written


def write_sqlite(path: str, queues: list[str], *, rows: int, keys: int, seed: int, portions: Portions) -> Written:
    chance = random.Random(seed)
    numbers = {f"key-{number}": 0 for number in range(keys)}
    written = Written()
    left = rows
    connection = sqlite3.connect(path, timeout=PATIENCE_S)
    while left:
        size = min(left, chance.randint(20, 400))
        kept = chance.random() > 0.15
        if kept:  # before the transaction, which keeps everybody else from writing
            portions.take(size)
        trial = dict(numbers)
        values = []
        for _ in range(size):
            key = chance.choice(list(numbers))
            trial[key] += 1
            body = json.dumps({"key": key, "n": trial[key], "kept": kept})
            values.append((queues[hash_of(key) % len(queues)], key, body))
        connection.executemany("INSERT INTO batonq_outbox (queue, key, body) VALUES (?, ?, ?)", values)
        if kept:
            connection.commit()
            numbers, left = trial, left - size
        else:
            connection.rollback()
            written.rolled_back += size
    connection.close()
    written.committed.update(numbers)
    return written


def hash_of(key: str) -> int:
    return sum(key.encode())


class Relays:
    """`baton outbox relay` processes that are killed and started again."""

    def __init__(self, arguments: list[str], count: int, seed: int) -> None:
        self.kills = 0
        self._command = [sys.executable, "-m", "batonq", "outbox", "relay", *arguments]
        self._chance = random.Random(seed)
        self._processes = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def kill_one(self) -> None:
        """kill -9 one of them, whatever it is at, and start another in its place."""
        place = self._chance.randrange(len(self._processes))
        process = self._processes[place]
        assert process.poll() is None, process.communicate()
        self._processes[place] = self._start()
        process.kill()
        process.communicate()
        self.kills += 1

    def kill_while_they_publish(self, published: Callable[[], int], portions: Portions, kills: int) -> None:
        """So many kills: each when some of a portion of rows is published, and the next portion comes after it."""
        for number in range(kills):
            enough = portions.size * (number + self._chance.uniform(0.05, 0.9))
            wait_until(lambda enough=enough: published() >= enough, "the relays publish nothing more")  # type: ignore[misc]
            self.kill_one()
            portions.release()

    def stop(self) -> None:
        """SIGTERM: they end by themselves, unless they have only just begun."""
        for process in self._processes:
            process.terminate()
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode in (0, -signal.SIGTERM), errors


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(LOOK_S)


@contextmanager
def relays(arguments: list[str], count: int, seed: int) -> Iterator[Relays]:
    running = Relays(arguments, count, seed)
    try:
        yield running
    finally:
        for process in running._processes:
            process.kill()
            process.communicate()


def delivered(baton: Baton, queue: str) -> list[tuple[int, dict[str, Any]]]:
    """Everything that the queue delivers, acknowledged: sequence and body of each, in the order of delivery."""
    found: list[tuple[int, dict[str, Any]]] = []
    source = baton.queue(queue)
    while messages := source.receive(1000, wait=0):
        found += [(message.sequence, message.body) for message in messages]
        assert [problem for problem in source.ack_many([message.receipt for message in messages]) if problem] == []
    return found


def check(written: Written, messages: list[tuple[int, dict[str, Any]]]) -> None:
    """Every committed row once, none that was rolled back, and each key's in order."""
    assert all(body["kept"] for _, body in messages)
    by_key: defaultdict[str, list[int]] = defaultdict(list)
    for _, body in sorted(messages, key=lambda message: message[0]):
        by_key[body["key"]].append(body["n"])
    expected = {key: list(range(1, count + 1)) for key, count in written.committed.items() if count}
    assert {key: len(numbers) for key, numbers in by_key.items()} == {key: len(n) for key, n in expected.items()}
    assert by_key == expected
