"""`baton demo`: fill a server with a living scenario, so that every page of the dashboard has something to show.

It uses the public API like any other program: producers send, workers receive and ack or nack. Without a server it
starts one on a temporary directory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from random import Random

from batonq.cli import demo_fanout
from batonq.cli.connection import URL_VARIABLE, add_client_arguments, use_for_client
from batonq.cli.demo_scenario import HEARTBEAT_S, PARTS, PREFIX, TAG, Part
from batonq.client import Baton, Message, Queue, connect
from batonq.errors import InvalidInput, LeaseLost, MessageGone, Unavailable

RATE_MAX_PER_S = 200.0
WAITING_MAX = 2_000  # messages per queue: the producer of a fuller queue pauses
SECONDS_MAX = 7 * 86_400.0
ONCE_MESSAGES = 400
ONCE_ROUNDS = 11
HELD_S = 900.0  # leases that `--once` leaves behind
START_S = 60.0
STOP_S = 10.0
REACH_S = 3.0
REPORT_S = 10.0
_RUN = secrets.token_hex(4)  # in deduplication keys, so that a second run is not a duplicate of the first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", type=int, default=9324, help="port of a server that the demo starts (default 9324)")
    parser.add_argument("--rate", type=float, default=20.0, help="messages per second, 0.1 to 200 (default 20)")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the scenario runs (default 600)")
    parser.add_argument("--once", action="store_true", help="send a fixed number of messages, handle most, and exit")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (default 1)")
    parser.add_argument("--remove", action="store_true", help="delete the queues that the demo has created, and exit")
    add_client_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if not 0.1 <= arguments.rate <= RATE_MAX_PER_S:
        raise InvalidInput(f"--rate {arguments.rate:g} is not a number from 0.1 to {RATE_MAX_PER_S:g}.")
    if not 0 < arguments.seconds <= SECONDS_MAX:
        raise InvalidInput(f"--seconds {arguments.seconds:g} is not a number above 0, up to {SECONDS_MAX:g}.")
    use_for_client(arguments)
    url = os.environ.get(URL_VARIABLE, "")
    local = f"http://127.0.0.1:{arguments.port}"
    if url or arguments.remove or _answers(local):
        return asyncio.run(_act(arguments, url or local))
    with _own_server(local) as address:
        code = asyncio.run(_act(arguments, address))
        if arguments.once:
            _wait_for_interrupt()
        return code


async def _act(arguments: argparse.Namespace, url: str) -> int:
    async with connect(url) as baton:
        if arguments.remove:
            return await remove(baton)
        queues = await create(baton)
        print(f"Dashboard: {url}/ui")
        for part in PARTS:
            dead = f", dead letters in {part.dead_letter_queue}" if part.dead_letter_queue else ""
            print(f"  {part.queue:20} {part.about}{dead}")
        print(f"  {demo_fanout.TOPIC:20} {demo_fanout.ABOUT}")
        if arguments.once:
            await run_once(url, baton, Random(arguments.seed))
        else:
            print(f"Running for {arguments.seconds:g} s at {arguments.rate:g} messages/s. Ctrl-C stops it.", flush=True)
            with suppress(asyncio.CancelledError):
                await Scenario(url, baton, queues, arguments.rate, arguments.seed).run(arguments.seconds)
        await _summarize(baton)
        print("Remove the queues with: baton demo --remove", flush=True)
    return 0


# --- queues ---------------------------------------------------------------------------------------


async def create(baton: Baton) -> dict[str, Queue]:
    """Create the queues, tagged. A queue of the same name that is not the demo's is an error."""
    existing = {info.name: info async for info in baton.queues(PREFIX)}
    wanted = {name for part in PARTS for name in (part.queue, part.dead_letter_queue) if name}
    strangers = sorted(name for name in wanted & existing.keys() if TAG not in existing[name].tags)
    if strangers:
        raise InvalidInput(
            f"Queue {strangers[0]} exists and was not created by the demo. Delete or rename it, or use another server."
        )
    found = {}
    for part in PARTS:
        if part.dead_letter_queue and part.dead_letter_queue not in existing:
            await baton.create_queue(part.dead_letter_queue, fifo=part.fifo, retention=1_209_600.0, tags={TAG: "yes"})
        if part.queue not in existing:
            await baton.create_queue(part.queue, fifo=part.fifo, tags={TAG: "yes"}, **part.settings)
        found[part.name] = baton.queue(part.queue)
    await demo_fanout.create(baton)
    return found


async def remove(baton: Baton) -> int:
    for name in await demo_fanout.remove(baton):
        print(f"Deleted topic {name}")
    names = [info.name async for info in baton.queues(PREFIX) if TAG in info.tags]
    # Sources first: a dead-letter queue in use cannot be deleted.
    for name in sorted(names, key=lambda name: name.removesuffix(".fifo").endswith("-dead")):
        await baton.queue(name).delete()
        print(f"Deleted {name}")
    if not names:
        print("The demo has no queues on this server.")
    return 0


async def _summarize(baton: Baton) -> None:
    for part in PARTS:
        stats = await baton.queue(part.queue).stats()
        dead = f", {stats.dead_lettered:,} dead-lettered" if part.dead_letter_queue else ""
        print(f"  {part.queue:20} {stats.sent:,} sent, {stats.visible:,} waiting, {stats.deleted:,} done{dead}")


# --- the living scenario ----------------------------------------------------------------------------


class Scenario:
    """Producers and workers, for a given time. Each has its own random numbers, derived from the seed."""

    def __init__(self, url: str, baton: Baton, queues: dict[str, Queue], rate_per_s: float, seed: int) -> None:
        self._url = url
        self._baton = baton
        self._queues = queues
        self._rate_per_s = rate_per_s
        self._seed = seed
        self._waiting: dict[str, int] = {}

    async def run(self, seconds: float) -> None:
        work = [
            self._watch(),
            demo_fanout.publish_forever(self._baton, self._rate_per_s, self._seed),
            demo_fanout.read_forever(self._baton),
        ]
        for part in PARTS:
            work.append(self._produce(part))
            work += [self._work(part, f"{part.name}-worker-{number + 1}") for number in range(part.workers)]
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _watch(self) -> None:
        """Look how full the queues are, so that producers can pause."""
        while True:
            for part in PARTS:
                stats = await self._queues[part.name].stats()
                self._waiting[part.name] = stats.visible + stats.delayed
            await asyncio.sleep(REPORT_S)

    async def _produce(self, part: Part) -> None:
        chance = Random(f"{self._seed} {part.name} producer")
        queue = self._queues[part.name]
        number = 0
        while True:
            await asyncio.sleep(chance.expovariate(self._rate_per_s * part.share))
            if self._waiting.get(part.name, 0) >= WAITING_MAX:
                continue
            number += 1
            await _send(queue, part, chance, number)

    async def _work(self, part: Part, name: str) -> None:
        chance = Random(f"{self._seed} {name}")
        async with _worker(self._url, name) as baton:
            queue = baton.queue(part.queue)
            while True:
                for message in await queue.receive(4, 20.0):
                    await _handle(part, message, chance, chance.uniform(*part.seconds))


def _worker(url: str, name: str) -> Baton:
    """A client of its own for each worker, as worker processes have: the server lists workers by name."""
    return connect(url, consumer=name)


async def _send(queue: Queue, part: Part, chance: Random, number: int) -> None:
    made = part.compose(chance, number)
    await queue.send(
        made.body,
        dedup_key=made.dedup_key and f"{made.dedup_key}-{_RUN}",
        group=made.group,
        delay=made.delay,
        ttl=made.ttl,
        priority=made.priority,
        attributes=made.attributes,
    )


async def _handle(part: Part, message: Message, chance: Random, seconds: float, *, retry_at_once: bool = False) -> None:
    """Work for some time, with heartbeats, then ack or nack."""
    try:
        async with _heartbeat(message):
            await asyncio.sleep(seconds)
        failure = part.handle(chance, message.body, message.receive_count)
        if failure is None:
            await message.ack()
        else:
            await message.nack(
                reason=failure.reason,
                error_class=failure.error_class,
                dead_letter=failure.permanent,
                delay=0.0 if retry_at_once else None,
            )
    except (LeaseLost, MessageGone):
        pass  # another worker has it now, or somebody deleted it in the dashboard


@asynccontextmanager
async def _heartbeat(message: Message) -> AsyncIterator[None]:
    async def beat() -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await message.extend(3 * HEARTBEAT_S)

    task = asyncio.ensure_future(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])  # `await task` could take a cancellation of ours for the task's own
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, (LeaseLost, MessageGone)):
            raise problem


async def run_once(url: str, baton: Baton, chance: Random) -> None:
    """A fixed scenario: the same messages and failures for the same seed, and no waiting."""
    for part in PARTS:
        queue = baton.queue(part.queue)
        for number in range(max(8, int(ONCE_MESSAGES * part.share))):
            await _send(queue, part, chance, number)
        if part.workers == 0:
            continue
        for worker in range(part.workers):
            async with _worker(url, f"{part.name}-worker-{worker + 1}") as client:
                mine = client.queue(part.queue)
                for _ in range(ONCE_ROUNDS):
                    for message in await mine.receive(12 // part.workers, 0.0):
                        await _handle(part, message, chance, 0.0, retry_at_once=True)
                await mine.receive(1, 0.0, visibility=HELD_S)
    for number in range(demo_fanout.ONCE_EVENTS):
        await demo_fanout.publish(baton, chance, number)
    await demo_fanout.read_some(baton, demo_fanout.ONCE_READ)


# --- a server of its own ----------------------------------------------------------------------------


def _answers(url: str) -> bool:
    """Whether any HTTP server answers there."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/livez", timeout=REACH_S):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextmanager
def _own_server(url: str) -> Iterator[str]:
    """A development server on a temporary directory, which is deleted at the end."""
    directory = Path(tempfile.mkdtemp(prefix="baton-demo-"))
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "batonq", "serve", "--data", str(directory / "data"), "--port", port]
    try:
        with open(directory / "server.log", "wb") as log:
            server = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            _wait_until_ready(server, url, directory / "server.log")
            print(f"No server was running, so the demo started one on {directory}. It stops with the demo.", flush=True)
            yield url
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(START_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _wait_until_ready(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    end = time.monotonic() + START_S
    while not _answers(url):
        if server.poll() is not None or time.monotonic() > end:
            raise Unavailable(f"The demo's server did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def _wait_for_interrupt() -> None:
    print("The server runs until Ctrl-C.", flush=True)
    with suppress(KeyboardInterrupt):
        signal.pause()
