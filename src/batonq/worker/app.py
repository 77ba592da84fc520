"""The worker application: declares tasks, and runs them until a signal stops it."""

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
from batonq.worker.ack_batches import REQUESTS_MAX, Desk
from batonq.worker.baton_source import BatonSource
from batonq.worker.errors import Classifier, Rules
from batonq.worker.heartbeat import Heartbeat
from batonq.worker.lanes import PATIENCE, Order
from batonq.worker.metrics import Counters, exposition
from batonq.worker.middleware import Middleware
from batonq.worker.retry import Retry
from batonq.worker.router import Router
from batonq.worker.runner import Runner
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
HANG_UP_S = 0.3  # for the loop to end its receives, when leases are released at once
HEARD_S = 0.05  # until the broker has noticed that they ended
# if the loop could not end them: leases are released after this process, and its receives with it, has gone
REMOTE_S = 1.0
_HandlerType = TypeVar("_HandlerType", bound=Handler)
_WORDS = {"dead_lettered": "dead-lettered", "leases_lost": "leases lost"}
_log = logging.getLogger("batonq.worker")


class Worker:
    """`Worker("http://…")`, `Worker()` for the server at BATON_URL, or `Worker(source=SqsSource(client))`.

    `Worker(baton=…)` uses the program's own async client, for example an embedded one, with `serve`. `rules` decides
    which exceptions are poison; a task can have its own rules. The server shows `name` as the holder of leases.
    With `group`, the handlers process the retained history of their queues, as members of that reader group.
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
        group: str = "",
    ) -> None:
        self._source = source or BatonSource(url, access_key, secret_key, baton)
        if group:
            self.read_group(group)
        self.middleware = list(middleware)
        self.rules = rules or Rules()
        self.name = name
        self.tasks: dict[str, Task] = {}
        self._runners: list[Runner] = []
        self._heartbeat: Heartbeat | None = None
        self._stop: asyncio.Event | None = None
        self._code = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._undead = False  # a handler could not be cancelled

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
        """Declare a handler. The function is returned unchanged, so it can be called and tested as it is.

        `queue` is a name, a pattern such as `hooks-*`, or several lanes that share `concurrency` slots. `visibility` is
        the length of a lease; the heartbeat extends it until `deadline` seconds after the handler started.
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
                raise ValueError(f"there are two tasks named {task.name!r}; set name=… for one of them")
            self.tasks[task.name] = task
            return handler

        return declare

    def use(self, middleware: Middleware) -> None:
        """Add a middleware inside the existing ones."""
        self.middleware.append(middleware)

    def queues(self) -> list[str]:
        """The queues and patterns of all tasks, in the order of their declaration."""
        return list(dict.fromkeys(lane.queue for task in self.tasks.values() for lane in task.lanes))

    def serving(self, queues: Sequence[str] = ()) -> list[Task]:
        """The tasks with only the given lanes, or with all of them. Raises InvalidInput for an unknown lane."""
        if not queues:
            return list(self.tasks.values())
        missing = [name for name in queues if name not in self.queues()]
        if missing:
            raise InvalidInput(
                f"No task serves {', '.join(missing)}. The queues of this worker are {', '.join(self.queues())}."
            )
        return [task for every in self.tasks.values() if (task := every.only(queues)) is not None]

    @property
    def url(self) -> str | None:
        """The server's URL, if one was given."""
        return self._source.url if isinstance(self._source, BatonSource) else None

    def connect_to(self, url: str) -> None:
        """Use another URL than the declared one, for `baton worker --url`."""
        if not isinstance(self._source, BatonSource):
            raise InvalidInput("This worker has its own source, so a URL cannot be set. Leave out --url.")
        self._source.url = url

    def read_group(self, group: str) -> None:
        """Run the handlers over a reader group of each task's queue, instead of receiving its messages."""
        if not isinstance(self._source, BatonSource):
            raise InvalidInput("This worker has its own source, so it cannot read a reader group. Leave out --group.")
        from batonq.worker.group_source import GroupSource  # imported late: few workers need it

        self._source = GroupSource(group, self._source)

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
        """Run until SIGTERM or SIGINT, then finish the running handlers. Returns the exit code.

        After a second signal, or after `drain_seconds`, all leases are released at once and the process ends.
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
                if self._undead:  # the loop would wait for it forever
                    _log.error("a handler ignores its cancellation; the process ends without it")
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
        """Run until `stop` is called: for programs with their own event loop, and for tests."""
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
        _log.info("worker %s has stopped: %s", self._consumer(), self.summary())
        if not all(ended):
            self._code, self._undead = 1, True
        return self._code

    def stop(self) -> None:
        """Receive no more messages, finish the running handlers, and stop. Call it on the worker's own loop."""
        if self._stop is not None:
            self._stop.set()

    def abandon(self) -> int:
        """Release all leases at once and cancel handlers if possible. Can be called from any thread, at the end of a
        process.
        """
        released = 0
        if self._heartbeat is not None:
            # An open receive of this worker would be the first to get the released messages.
            released = self._heartbeat.release_all(0.0 if self._hung_up() else REMOTE_S)
        for runner in self._runners:
            runner.kill()
        return released

    def _hung_up(self) -> bool:
        """End receives in progress from another thread than the loop's. False if the loop is blocked."""
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
        """The counters of each task, by its name."""
        return {runner.task.name: runner.counters for runner in self._runners}

    def metrics_text(self) -> str:
        return exposition(runner.counters for runner in self._runners)

    def summary(self) -> str:
        names = ("received", "acked", "retried", "dead_lettered", "refused", "leases_lost")
        totals = {name: sum(getattr(runner.counters, name) for runner in self._runners) for name in names}
        return ", ".join(f"{total} {_WORDS.get(name, name)}" for name, total in totals.items())

    # ---

    def _chosen(self, queues: Sequence[str], concurrency: int | None) -> list[Task]:
        if not self.tasks:
            raise InvalidInput("The worker has no tasks. Declare one with @app.task(queue=…).")
        tasks = self.serving(queues)
        return [replace(task, concurrency=concurrency) for task in tasks] if concurrency is not None else tasks

    def _page(self, host: str, port: int) -> MetricsPage:
        from batonq.worker.metricspage import MetricsPage

        try:
            page = MetricsPage(self.metrics_text, host, port)
        except OSError as problem:
            raise InvalidInput(f"Metrics cannot be served on {host}:{port}: {problem}.") from None
        _log.info("metrics are served at http://%s:%d/metrics", host, page.port)
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
            _log.warning("handlers were still running after %g s; released %d leases", seconds, released)
            self._code = 1

    def _stuck(self, why: str) -> None:
        _log.error("%s; this worker exits, so that a new one can replace it", why)
        self._code = 1
        self.stop()
