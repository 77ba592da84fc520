"""The worker that a program declares: tasks, and running them until a signal comes."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from batonq.errors import InvalidInput
from batonq.worker.baton_source import BatonSource
from batonq.worker.errors import Classifier, Rules
from batonq.worker.heartbeat import Heartbeat
from batonq.worker.lanes import PATIENCE, Order
from batonq.worker.metrics import Counters, exposition
from batonq.worker.middleware import Middleware
from batonq.worker.retry import Retry
from batonq.worker.router import Router
from batonq.worker.runner import Runner
from batonq.worker.settling import REQUESTS_MAX, Desk
from batonq.worker.shutdown import Signals, stop_when_orphaned
from batonq.worker.source import Source
from batonq.worker.task import (
    DEADLINE_S,
    VISIBILITY_S,
    WAIT_S,
    Handler,
    Queues,
    Rates,
    Run,
    Task,
    as_lanes,
    as_rates,
    usual_concurrency,
    usual_run,
)

if TYPE_CHECKING:
    from batonq.client.aio.baton import Baton
    from batonq.worker.metricspage import MetricsPage

DRAIN_S = 30.0
HANG_UP_S = 0.3  # for the loop to end its receives, when leases are given back at once
HEARD_S = 0.05  # until the broker has seen that they have ended
REMOTE_S = 1.0  # if it could not: leases end when this process, and its receives with it, has gone
_HandlerType = TypeVar("_HandlerType", bound=Handler)
_log = logging.getLogger("batonq.worker")


class Worker:
    """`Worker("http://…")`, `Worker()` for the server at BATON_URL, or `Worker(source=SqsSource(client))`.

    `Worker(baton=…)` uses an async client that the program has, such as one in its own process, with `serve`.
    `rules` says which exceptions are poison; a task may have its own. `name` is what the server shows for the holder of
    a lease.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        source: Source | None = None,
        baton: Baton | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        middleware: Sequence[Middleware] = (),
        rules: Rules | None = None,
        name: str = "",
    ) -> None:
        self._source = source or BatonSource(url, access_key, secret_key, baton)
        self.middleware = list(middleware)
        self.rules = rules or Rules()
        self.name = name
        self.tasks: dict[str, Task] = {}
        self._runners: list[Runner] = []
        self._heartbeat: Heartbeat | None = None
        self._stop: asyncio.Event | None = None
        self._code = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undead = False  # a handler could not be ended

    # --- declaring

    def task(
        self,
        *,
        queue: Queues,
        name: str = "",
        order: Order = "fair",
        patience: int = PATIENCE,
        concurrency: int | None = None,
        retry: Retry | None = None,
        visibility: float = VISIBILITY_S,
        deadline: float = DEADLINE_S,
        run: Run | None = None,
        batch: int = 0,
        rate: Rates | None = None,
        poison: Sequence[type[BaseException]] = (),
        retry_on: Sequence[type[BaseException]] = (),
        done_on: Sequence[type[BaseException]] = (),
        classify: Classifier | None = None,
        router: Router | None = None,
        wait: float = WAIT_S,
    ) -> Callable[[_HandlerType], _HandlerType]:
        """Declare a handler; the function itself is returned unchanged, to be called and tested as it is.

        `queue` is a name, a pattern such as `hooks-*`, or several lanes that share `concurrency` slots. `visibility` is
        how long a lease is; the heartbeat extends it, until `deadline` seconds after the handler began.
        """

        def declare(handler: _HandlerType) -> _HandlerType:
            how = run or usual_run(handler)
            own = Rules(
                (*poison, *self.rules.poison),
                (*retry_on, *self.rules.retry),
                (*done_on, *self.rules.done),
                classify or self.rules.classify,
            )
            task = Task(
                name=name or handler.__name__,
                handler=handler,
                lanes=as_lanes(queue),
                order=order,
                patience=patience,
                concurrency=usual_concurrency(how) if concurrency is None else concurrency,
                retry=retry,
                visibility=visibility,
                deadline=deadline,
                run=how,
                batch=batch,
                rates=as_rates(rate),
                rules=own,
                router=router,
                wait=wait,
            )
            if task.name in self.tasks:
                raise ValueError(f"there are two tasks with the name {task.name!r}; give one of them name=…")
            self.tasks[task.name] = task
            return handler

        return declare

    def use(self, middleware: Middleware) -> None:
        """Add a middleware, inside of those that are there."""
        self.middleware.append(middleware)

    def queues(self) -> list[str]:
        """The queues and patterns of all tasks, in the order in which they were declared."""
        return list(dict.fromkeys(lane.queue for task in self.tasks.values() for lane in task.lanes))

    def serving(self, queues: Sequence[str] = ()) -> list[Task]:
        """The tasks with those of their lanes that are named; all of them if none is. Raises InvalidInput."""
        if not queues:
            return list(self.tasks.values())
        missing = [name for name in queues if name not in self.queues()]
        if missing:
            raise InvalidInput(f"No task serves {', '.join(missing)}; there are {', '.join(self.queues())}.")
        return [task for every in self.tasks.values() if (task := every.only(queues)) is not None]

    @property
    def url(self) -> str | None:
        """The server's address, if it was given one."""
        return self._source.url if isinstance(self._source, BatonSource) else None

    def connect_to(self, url: str) -> None:
        """Another address than the one it was declared with, as `baton worker --url` asks for."""
        if not isinstance(self._source, BatonSource):
            raise InvalidInput("This worker has a source of its own; an address cannot be given to it.")
        self._source.url = url

    # --- running

    def run(
        self,
        *,
        queues: Sequence[str] = (),
        concurrency: int | None = None,
        drain_seconds: float = DRAIN_S,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> int:
        """Work until SIGTERM or SIGINT, and then until the handlers are done; the exit code.

        A second signal, or the end of `drain_seconds`, gives all leases back at once and ends the process.
        """

        async def main() -> int:
            with Signals(self.stop, self.abandon, drain_seconds):
                watch = asyncio.create_task(stop_when_orphaned(self.stop))
                code = await self.serve(
                    queues=queues,
                    concurrency=concurrency,
                    drain_seconds=drain_seconds,
                    metrics_port=metrics_port,
                    metrics_host=metrics_host,
                )
                watch.cancel()
                if self._undead:  # the loop would wait for it for ever
                    _log.error("a handler ignores that it is cancelled: the process ends without it")
                    logging.shutdown()
                    os._exit(code)
                return code

        return asyncio.run(main())

    async def serve(
        self,
        *,
        queues: Sequence[str] = (),
        concurrency: int | None = None,
        drain_seconds: float = DRAIN_S,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
    ) -> int:
        """Work until `stop` is called: for programs with an event loop of their own, and tests."""
        tasks = self._chosen(queues, concurrency)
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._code = 0
        await self._source.open(self._consumer(), REQUESTS_MAX + len(tasks))
        heartbeat = self._heartbeat = Heartbeat(self._source, min(task.visibility for task in tasks))
        desk = Desk(self._source)
        self._runners = [Runner(task, self._source, heartbeat, desk, self.middleware, self._stuck) for task in tasks]
        page = None
        try:
            if metrics_port is not None:
                page = self._page(metrics_host, metrics_port)
            heartbeat.start()
            polls = [asyncio.create_task(runner.poll()) for runner in self._runners]
            names = ", ".join(f"{task.name} ({'+'.join(lane.queue for lane in task.lanes)})" for task in tasks)
            _log.info("worker %s serves %s", self._consumer(), names)
            await self._until_stopped(polls)
            for runner in self._runners:
                runner.stop()
            await asyncio.gather(*polls)
            await self._drain(desk, heartbeat, drain_seconds)
        finally:
            ended = [await runner.close() for runner in self._runners]
            await asyncio.to_thread(heartbeat.stop)
            await desk.close()
            await self._source.close()
            if page is not None:
                page.close()
            self._stop = None
        _log.info("worker %s has ended: %s", self._consumer(), self.summary())
        if not all(ended):
            self._code, self._undead = 1, True
        return self._code

    def stop(self) -> None:
        """Take no more messages, finish those that are here, and end. On the worker's own loop."""
        if self._stop is not None:
            self._stop.set()

    def abandon(self) -> int:
        """Give all leases back at once, and end handlers that can be ended; from any thread, at a process's end."""
        released = 0
        if self._heartbeat is not None:
            # A receive of our own that is still open would be the first to get what is given back.
            released = self._heartbeat.release_all(0.0 if self._hung_up() else REMOTE_S)
        for runner in self._runners:
            runner.kill()
        return released

    def _hung_up(self) -> bool:
        """End receives that are under way, from another thread than the loop's; False: the loop is blocked."""
        loop, done = self._loop, threading.Event()
        if loop is None or not any(runner.asking for runner in self._runners):
            return True

        def cut_off() -> None:
            for runner in self._runners:
                runner.cut_off()
            done.set()

        loop.call_soon_threadsafe(cut_off)
        if not done.wait(HANG_UP_S):
            return False
        time.sleep(HEARD_S)
        return True

    # --- looking

    @property
    def counters(self) -> dict[str, Counters]:
        """What each task has counted, by its name."""
        return {runner.task.name: runner.counters for runner in self._runners}

    def metrics_text(self) -> str:
        return exposition(runner.counters for runner in self._runners)

    def summary(self) -> str:
        names = ("received", "acked", "retried", "poisoned", "refused", "leases_lost")
        totals = {name: sum(getattr(runner.counters, name) for runner in self._runners) for name in names}
        return ", ".join(f"{total} {name.replace('_', ' ')}" for name, total in totals.items())

    # ---

    def _chosen(self, queues: Sequence[str], concurrency: int | None) -> list[Task]:
        if not self.tasks:
            raise InvalidInput("The worker has no tasks: declare some with @app.task(queue=…).")
        tasks = self.serving(queues)
        return [replace(task, concurrency=concurrency) for task in tasks] if concurrency is not None else tasks

    def _page(self, host: str, port: int) -> MetricsPage:
        from batonq.worker.metricspage import MetricsPage

        try:
            page = MetricsPage(self.metrics_text, host, port)
        except OSError as problem:
            raise InvalidInput(f"Metrics cannot be served on {host}:{port}: {problem}.") from None
        _log.info("metrics are at http://%s:%d/metrics", host, page.port)
        return page

    def _consumer(self) -> str:
        return self.name or f"{socket.gethostname()}-{os.getpid()}"

    async def _until_stopped(self, polls: list[asyncio.Task[None]]) -> None:
        assert self._stop is not None
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([stopped, *polls], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
        for poll in polls:
            if poll.done() and (error := poll.exception()) is not None:
                raise error

    async def _drain(self, desk: Desk, heartbeat: Heartbeat, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                for runner in self._runners:
                    await runner.drained()
                await desk.settled()
        except TimeoutError:
            released = await asyncio.to_thread(heartbeat.release_all)
            _log.warning("handlers were still at work after %g s: gave back %d leases", seconds, released)
            self._code = 1

    def _stuck(self, why: str) -> None:
        _log.error("%s; this worker ends, so that another one can take its place", why)
        self._code = 1
        self.stop()
