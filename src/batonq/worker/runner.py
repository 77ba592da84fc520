"""Runs one task: a poller that requests as many messages as there are free slots, and slots that run the handler.

A slot is an asyncio task that lives as long as the worker and runs one message after another, because creating a task
per message would cost more than everything else here. Slots are woken one by one, each when the previous one waits for
something, so handlers that never wait all run in the first slot.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from batonq.client import telemetry
from batonq.errors import BatonError
from batonq.worker.ack_batches import Desk, Settling
from batonq.worker.errors import DeadlineExceeded, Failure
from batonq.worker.failure_log import FailureLog
from batonq.worker.handler_threads import Crew, InThread, Performer
from batonq.worker.heartbeat import Grip, Heartbeat, Held
from batonq.worker.metrics import Counters
from batonq.worker.middleware import Call, Middleware, overriding, wrapped
from batonq.worker.parking import Parking
from batonq.worker.poller import Poller
from batonq.worker.router import Router
from batonq.worker.source import Message, Source
from batonq.worker.task import Task

OWED_MIN = 1000  # pending answers, whatever the task's size
CANCELS, CANCEL_S = 3, 1.0  # time for a cancelled handler to clean up; after these attempts it is abandoned
_log = logging.getLogger("batonq.worker")


class Slot:
    """The place of one running handler."""

    __slots__ = ("item", "stopped", "task", "waiter")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.waiter: asyncio.Future[None] | None = None
        self.item: tuple[Grip, Any] | None = None  # the message or messages that it is processing
        self.stopped = ""  # why its handler is being cancelled: "lost" or "deadline"


class Runner:
    """Runs one task. `stuck` is called when all its threads hang: then only a new process helps."""

    def __init__(
        self,
        task: Task,
        source: Source,
        heartbeat: Heartbeat,
        desk: Desk,
        middleware: Sequence[Middleware],
        stuck: Callable[[str], None],
    ) -> None:
        self.task = task
        self.counters = Counters(task.name, lambda: self.busy)
        self._loop = asyncio.get_running_loop()
        self._stuck = stuck
        self._settling = Settling(desk, self._acked, self._refused, patience=task.visibility)
        self._failures = FailureLog(source, self.counters, task.retry)
        self._heartbeat = heartbeat
        self._many_queues = task.many_queues
        self._owed_max = max(OWED_MIN, 4 * task.capacity)
        self._crew = None if task.run == "async" else Crew(task.name, self._performer, self._late, self._loop)
        self._call: Call = wrapped(self._crew or task.handler, middleware)
        if telemetry.active is not None:
            self._call = telemetry.active.around(self._call)
        self._hooks = {name: overriding(middleware, name) for name in _HOOKS}
        self._ready: deque[tuple[Grip, Any]] = deque()
        self._slots: list[Slot] = []
        self._parked: list[Slot] = []
        self._woken = 0  # slots that were woken and have not taken a message yet
        self._chained = False  # a check whether another slot is needed is scheduled
        self._idle = asyncio.Event()
        self._idle.set()
        heartbeat.add(self)
        limits = task.new_limits()
        self._parking: Parking | None = None
        if limits.keyed:
            self._parking = Parking(limits, task, self._loop, self._start, heartbeat, self.counters)
            heartbeat.add(self._parking)
        self._poller = Poller(task, source, limits, self)

    # --- the poller's side

    @property
    def busy(self) -> int:
        """Number of slots that are busy or about to be."""
        return len(self._slots) - len(self._parked) - self._woken + len(self._ready)

    @property
    def free(self) -> int:
        """Number of messages for which there are slots."""
        if self._settling.owed >= self._owed_max:
            return 0  # the broker accepts no answers at the moment, so further messages would only be received again
        return (self.task.concurrency - self.busy) * (self.task.batch or 1)

    async def poll(self) -> None:
        """Poll until `stop`."""
        await self._poller.run()

    def stop(self) -> None:
        self._poller.stop()
        if self._parking is not None:
            self._parking.close()

    @property
    def asking(self) -> bool:
        """Whether a receive is in progress."""
        return self._poller.asking

    def cut_off(self) -> None:
        """Cancel a receive in progress."""
        self._poller.cut_off()

    async def drained(self) -> None:
        """Wait until no handler is running."""
        await self._idle.wait()

    async def close(self) -> bool:
        """Stop the slots. False if a handler ignores its cancellation and cannot be stopped."""
        tasks = {slot.task for slot in self._slots if slot.task is not None}
        for _ in range(CANCELS):
            for task in tasks:
                task.cancel()
            if not tasks:
                break
            _, tasks = await asyncio.wait(tasks, timeout=CANCEL_S)
        if self._crew is not None:
            self._crew.close()
        await self._failures.close()
        return not tasks

    def kill(self) -> None:
        """Kill handlers if possible, from any thread."""
        if self._crew is not None:
            self._crew.kill()

    def take(self, messages: Sequence[Message], ordered: Collection[str], age: float) -> None:
        """Accept messages that were just received. For queues in `ordered`, the order within groups is kept.

        `age` is how old their leases may be: 0 unless the response had to wait for this process.
        """
        self.counters.received += len(messages)
        if self.task.router is not None:
            self._check_routes(self.task.router, messages)
        if self._parking is not None:
            messages = self._parking.sort(messages)
        if messages:
            self._start(messages, ordered, age)

    def give_back(self, messages: Sequence[Message]) -> None:
        """Release messages that arrived after the worker was stopped."""
        self.counters.received += len(messages)
        self.counters.released += len(messages)
        for message in messages:
            self._heartbeat.postpone(message, 0.0)

    def _start(self, messages: Sequence[Message], ordered: Collection[str] = (), age: float = 0.0) -> None:
        task = self.task
        pad = None if self._many_queues else self._settling.pad(messages[0].queue)
        grip = Grip(time.monotonic(), task.visibility, task.deadline, pad)
        if age:
            grip.extend_at -= age  # the heartbeat soon checks whether the leases are still valid
        self._idle.clear()
        size = task.batch
        if size:
            self._ready.extend((grip, list(messages[at : at + size])) for at in range(0, len(messages), size))
        elif ordered:
            self._ready.extend((grip, each) for each in strands(messages, ordered))
        else:
            self._ready.extend([(grip, message) for message in messages])
        if not self._chained:
            self._wake_one()

    def _check_routes(self, router: Router, messages: Sequence[Message]) -> None:
        for message in messages:
            if not router.check(message):
                self.counters.misrouted += 1
                _log.warning("%s arrived in %s, which is not the queue of its tier", message.id, message.queue)

    # --- slots

    def _wake_one(self) -> None:
        """Wake a slot if there is a message for it."""
        self._chained = False
        if not self._ready:
            return
        if self._parked:
            waiter = self._parked.pop().waiter
            self._woken += 1
            if waiter is not None and not waiter.done():
                waiter.set_result(None)
        elif len(self._slots) < self.task.concurrency:
            slot = Slot()
            self._slots.append(slot)
            self._woken += 1
            serve = self._serve_batches if self.task.batch else self._serve
            slot.task = self._loop.create_task(serve(slot), name=f"baton-{self.task.name}")

    async def _serve(self, slot: Slot) -> None:
        """The inner loop for every message: work that can be done once or elsewhere is not done here."""
        ready, call, done_hooks = self._ready, self._call, self._hooks["done"]
        popleft = ready.popleft
        settling, submit = self._settling, self._settling.desk.submit
        observe, clock = self.counters.handler_durations.observe, time.perf_counter
        while True:
            self._woken -= 1
            started = time.perf_counter()
            while ready:
                # put into the slot before it leaves the list, so that the heartbeat always sees it
                slot.item = item = ready[0]
                popleft()
                if ready and not self._chained:
                    self._chained = True
                    self._loop.call_soon(self._wake_one)
                grip, message = item
                if message.__class__ is list:
                    await self._strand(slot, grip, message)
                    continue
                began = clock()
                try:
                    await call(message)
                except BaseException as error:
                    observe(clock() - began)
                    self._failed(slot, message, error)
                else:
                    observe(clock() - began)
                    pad = grip.pad or settling.pad(message.queue)
                    pad.acks.append(message)
                    if not pad.busy:
                        submit(pad)
                    if done_hooks:
                        self._tell("done", message)
                if slot.stopped:
                    self._calm(slot)
            await self._park(slot, started)

    async def _strand(self, slot: Slot, grip: Grip, messages: list[Message]) -> None:
        """Process the messages of one FIFO group, one after another. After a failure the rest is released, and the
        broker delivers it after the failed message.
        """
        while messages:
            slot.item = (grip, messages)
            message = messages[0]
            if message.receipt in grip.lost:
                break
            began = time.perf_counter()
            try:
                await self._call(message)
            except BaseException as error:
                self._observe(began)
                self._failed(slot, message, error)
                messages = messages[1:]
                break
            self._observe(began)
            self._settling.ack(message)
            self._tell("done", message)
            messages = messages[1:]
        if slot.stopped:
            self._calm(slot)
        for message in messages:
            if message.receipt not in grip.lost:
                self.counters.released += 1
                self._heartbeat.postpone(message, 0.0)

    async def _serve_batches(self, slot: Slot) -> None:
        ready = self._ready
        while True:
            self._woken -= 1
            started = time.perf_counter()
            while ready:
                slot.item = ready[0]
                _, messages = ready.popleft()
                if ready and not self._chained:
                    self._chained = True
                    self._loop.call_soon(self._wake_one)
                began = time.perf_counter()
                try:
                    results = _results(messages, await self._call(messages))
                except BaseException as error:
                    results = [error] * len(messages)
                self._observe(began)
                for message, result in zip(messages, results, strict=True):
                    if isinstance(result, BaseException):
                        self._failed(slot, message, result)
                    else:
                        self._settling.ack(message)
                        self._tell("done", message)
                if slot.stopped:
                    self._calm(slot)
            await self._park(slot, started)

    def _observe(self, began: float) -> None:
        self.counters.handler_durations.observe(time.perf_counter() - began)

    async def _park(self, slot: Slot, started: float) -> None:
        """Wait for the next message."""
        slot.item = None
        self.counters.handler_seconds += time.perf_counter() - started
        slot.waiter = self._loop.create_future()
        self._parked.append(slot)
        if len(self._parked) == len(self._slots):
            self._idle.set()
        self._poller.wake()
        await slot.waiter

    # --- outcomes

    def _tell(self, name: str, *given: Any) -> None:
        """Call this hook of every middleware. An exception in a hook is logged and does not affect the messages."""
        for hook in self._hooks[name]:
            try:
                hook(*given)
            except Exception:
                _log.exception("the middleware hook %s failed", name)

    def _failed(self, slot: Slot, message: Message, error: BaseException) -> None:
        assert slot.item is not None and slot.task is not None
        if isinstance(error, asyncio.CancelledError):
            if not slot.stopped and slot.task.cancelling():
                raise error  # the worker is stopping
            if slot.stopped == "deadline":
                error = DeadlineExceeded(f"the handler was still running after {self.task.deadline:g} s")
        if message.receipt in slot.item[0].lost:
            return  # the lease was lost, which was reported when it was found out
        if slot.stopped == "deadline" and self.task.run == "thread":
            return  # its thread cannot be stopped: the lease must expire, because the thread continues
        failure = self._failure(message, error)
        if failure is None:
            self._settling.ack(message)
            return
        if failure.untried:
            self.counters.released += 1
            self._settling.nack(message, failure)
            _log.info("%s %s is released untried: %s", message.queue, message.id, failure.reason)
            return
        self._settling.nack(message, failure)
        self._failures.add(message, failure, error)
        self._tell("failed", message, failure, error)

    def _failure(self, message: Message, error: BaseException) -> Failure | None:
        failure = self.task.rules.failure(error)
        retry = self.task.retry
        if failure is None or retry is None or failure.dead_letter or failure.untried:
            return failure
        if retry.is_last(message.receive_count):
            return Failure(failure.error_class, failure.reason, None, dead_letter=True)
        if failure.delay is not None:
            return failure
        return Failure(failure.error_class, failure.reason, retry.delay(message.receive_count, random.random()))

    def _acked(self, count: int) -> None:
        self.counters.acked += count
        self._poller.wake()

    def _refused(self, message: Message, error: BatonError) -> None:
        """The answer came after the lease was lost: another consumer may process the message again."""
        self.counters.refused += 1
        _log.warning("the broker refused the answer for %s %s: %s (%s)", message.queue, message.id, error, error.code)
        self._tell("refused", message, error)

    # --- from the heartbeat's thread

    def held(self) -> list[Held]:
        items = [*self._ready, *(slot.item for slot in self._slots if slot.item is not None)]
        if self.task.batch or any(isinstance(given, list) for _, given in items):
            return [(grip, each) for grip, given in items for each in (given if isinstance(given, list) else [given])]
        return items

    def extended(self, count: int) -> None:
        self.counters.extended += count

    def released(self, count: int) -> None:
        self.counters.released += count

    def lost(self, grip: Grip, message: Message, error: BatonError) -> None:
        self.counters.leases_lost += 1
        _log.warning("lost the lease of %s %s: %s", message.queue, message.id, error)
        self._tell("lease_lost", message, error)
        if not self.task.batch:  # the other messages of a batch are still leased
            self._later(self._cancel, message, "lost")

    def overdue(self, grip: Grip, message: Message) -> None:
        self.counters.deadlines += 1
        _log.warning("%s %s is still running at its deadline", message.queue, message.id)
        self._tell("deadline_passed", message)
        self._later(self._cancel, message, "deadline")

    def _later(self, callback: Callable[..., None], *given: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *given)
        except RuntimeError:
            pass  # the loop is closed

    def _cancel(self, message: Message, why: str) -> None:
        for slot in self._slots:
            given = slot.item[1] if slot.item is not None else None
            if isinstance(given, list):  # of a batch all messages are being processed, of a FIFO group the first
                found = any(each is message for each in (given if self.task.batch else given[:1]))
            else:
                found = given is message
            if found:
                if not slot.stopped:
                    slot.stopped = why
                    assert slot.task is not None
                    slot.task.cancel()
                return
        for item in self._ready:
            if item[1] is message:  # it is waiting for a slot and must not be started any more
                self._ready.remove(item)
                self._poller.wake()
                return

    def _calm(self, slot: Slot) -> None:
        """The handler was cancelled and has stopped: the slot continues."""
        assert slot.task is not None
        while slot.task.cancelling():
            slot.task.uncancel()
        slot.stopped = ""
        if self._crew is not None and self._crew.hung >= self.task.concurrency:
            self._stuck(f"all {self.task.concurrency} threads of task {self.task.name!r} hang")

    # --- threads and processes

    def _performer(self) -> Performer:
        if self.task.run == "process":
            from batonq.worker.processes import InProcess  # imported late: few workers need it

            return InProcess(self.task.handler, self._crashed)
        return InThread(self.task.handler)

    def _crashed(self) -> None:
        """Called on a crew's thread."""
        self._later(self._count_crash)

    def _count_crash(self) -> None:
        self.counters.crashes += 1

    def _late(self, given: Any, error: BaseException | None) -> None:
        """An abandoned handler has finished after all. If its work is done, the message is acked: it may not have been
        delivered again yet, and if it has, the refusal is reported.
        """
        if error is None:
            for message in given if isinstance(given, list) else [given]:
                self._settling.ack(message)


def strands(messages: Sequence[Message], ordered: Collection[str]) -> list[Any]:
    """The messages, with those of one group of an ordered queue combined in one list, in order."""
    found: dict[tuple[str, str | None], list[Message]] = {}
    line: list[Any] = []
    for message in messages:
        if message.queue not in ordered:
            line.append(message)
            continue
        key = (message.queue, message.group)
        strand = found.get(key)
        if strand is None:
            strand = found[key] = []
            line.append(strand)
        strand.append(message)
    return line


_HOOKS = ("done", "failed", "lease_lost", "deadline_passed", "refused")


def _results(messages: list[Message], results: Any) -> Sequence[Any]:
    """One result per message: an exception is that message's failure, everything else means done; None means that all
    are done.
    """
    if results is None:
        return [None] * len(messages)
    if not isinstance(results, (list, tuple)) or len(results) != len(messages):
        raise TypeError(
            f"a batch handler must return None, or a list with one result for each of its {len(messages)} messages"
        )
    return results
