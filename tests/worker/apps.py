"""The worker that the tests with real processes run: `baton worker tests.worker.apps:app`.

What happens is written to the file EVENTS, a line each; a handler that is to wait does so until the file GO exists.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
from pathlib import Path
from typing import Any

from batonq.errors import BatonError
from batonq.idempotency import idempotent_in_transaction
from batonq.worker import Message, Middleware, RetryLater, Worker
from tests.support.doubles import double

EVENTS = os.environ.get("EVENTS", os.devnull)
GO = Path(os.environ.get("GO", os.devnull))
EFFECTS = os.environ.get("EFFECTS", ":memory:")
VISIBILITY_S = float(os.environ.get("VISIBILITY", "30"))
DEADLINE_S = float(os.environ.get("DEADLINE", "3600"))
DIE = os.environ.get("DIE", "")
LOOK_S = 0.005


def note(what: str, body: Any) -> None:
    """A short line in append mode goes into the file whole, whoever else is writing."""
    line = f"{what} {body} {os.getpid()}\n".encode()
    file = os.open(EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def connection() -> sqlite3.Connection:
    made = sqlite3.connect(EFFECTS, timeout=30)
    made.execute("PRAGMA synchronous = OFF")  # the processes are killed here, not the machine
    return made


@double()
class Telling(Middleware):
    def done(self, message: Message) -> None:
        if DIE == "before ack":
            os.kill(os.getpid(), signal.SIGKILL)

    def refused(self, message: Message, error: BatonError) -> None:
        note(f"refused:{error.code}", message.body)

    def lease_lost(self, message: Message, error: BatonError) -> None:
        note("lost", message.body)

    def deadline_passed(self, message: Message) -> None:
        note("deadline", message.body)


app = Worker(middleware=[Telling()])


def wait() -> None:
    while not GO.exists():
        time.sleep(LOOK_S)


@app.task(queue="effects", concurrency=4, visibility=VISIBILITY_S)
@idempotent_in_transaction(connection)
def effect(message: Message, connection: sqlite3.Connection) -> None:
    """The effect and the mark that it was done are one transaction."""
    connection.execute("INSERT INTO effects (body) VALUES (?)", (message.body,))


@app.task(queue="waits", concurrency=4, visibility=VISIBILITY_S, deadline=DEADLINE_S)
async def waits(message: Message) -> None:
    note("begin", message.body)
    while not os.path.exists(GO):  # noqa: ASYNC110, ASYNC240 - a file is what another process can set
        await asyncio.sleep(LOOK_S)
    note("end", message.body)


@app.task(queue="threads", concurrency=1, visibility=VISIBILITY_S, deadline=DEADLINE_S)
def on_a_thread(message: Message) -> None:
    note("begin", message.body)
    if message.receive_count == 1:
        wait()
    note("end", message.body)


@app.task(queue="blocks", concurrency=1, visibility=VISIBILITY_S, deadline=DEADLINE_S)
async def blocks_the_loop(message: Message) -> None:
    note("begin", message.body)
    if message.receive_count == 1:
        wait()
    note("end", message.body)


@app.task(queue="slow", concurrency=1, visibility=VISIBILITY_S)
async def slow(message: Message) -> None:
    note("begin", message.body)
    await asyncio.sleep(5 * VISIBILITY_S)
    note("end", message.body)


@app.task(queue="crashes", concurrency=2, run="process", visibility=VISIBILITY_S)
def crashes(message: Message) -> None:
    if message.body == "crash":
        os._exit(9)
    note("end", message.body)


@app.task(queue="ordered", concurrency=8, visibility=VISIBILITY_S)
async def ordered(message: Message) -> None:
    number = message.body.partition(":")[2]
    await asyncio.sleep(0.001)
    if int(number) % 7 == 3 and message.receive_count == 1:
        raise RetryLater(0, "once more")
    note("end", message.body)


@app.task(queue="hooks-*", concurrency=64, visibility=VISIBILITY_S)
async def hooks(message: Message) -> None:
    note("end", f"{message.queue}={message.body}")
