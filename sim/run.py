"""One simulation: takes a seed and returns a verdict."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from batonq.core.limits import DEFAULT_LIMITS
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.settings import Settings
from sim.actors import Consumer, Grower, Operator, Producer
from sim.audit import audit
from sim.breaks import BrokenOff, receives_that_break_off
from sim.bugs import planted
from sim.chaos import Chaos
from sim.checks import Evidence, QueueFacts, check_all
from sim.clients import ANSWER_S, InFlight
from sim.closing import Closing
from sim.crew import Crew
from sim.crowd_scenario import choose
from sim.crowds import Actor, crowds
from sim.history import OK, History, Receiving, Sending, Violation
from sim.ledger import no_objects
from sim.log import Witness
from sim.loop import SimLoop
from sim.machine import Gone, Machine, quiet_logging
from sim.patches import Patches, patched
from sim.pausing import Pauser
from sim.payloads import ObjectStorage
from sim.purge_points import purge_points_noted
from sim.reading import Readers
from sim.replaying import Replayer
from sim.scenario import ACCOUNT, QueuePlan, Scenario
from sim.scheduling import Scheduler
from sim.tables import leftovers

AUDIT_S = 4.0
DRAIN_ROUNDS_MAX = 300
SETUP_TRIES_MAX = 500
VIOLATIONS_MAX = 50


@dataclass(slots=True)
class Outcome:
    """The result of a simulation."""

    seed: int
    bug: str | None
    digest: str
    acknowledged: int  # messages
    summary: str
    scenario: str
    violations: list[Violation] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    tiny: str = ""  # the limits that were tiny
    reached: set[str] = field(default_factory=set)  # the limits that were reached
    left: set[str] = field(default_factory=set)  # the limits that were free again afterwards

    @property
    def checkers(self) -> set[str]:
        return {violation.checker for violation in self.violations}

    def about(self, words: Iterable[str], limit: int) -> list[str]:
        """The lines that contain any of the words; only the last ones if there are many."""
        wanted = list(words)
        return [line for line in self.lines if any(word in line for word in wanted)][-limit:]


class Simulation:
    """The surroundings of everything in one run (see clients.Surroundings)."""

    drain_rounds_max = DRAIN_ROUNDS_MAX
    forgets_in_the_end = True  # before examining its queues, a run waits until everything is forgotten
    payloads_settle_s = 20.0  # see payloads.py
    replayed_messages = 40  # in each replay
    leftovers_s = 0.7  # a node's own tasks also wait for a commit, for at most this long

    def __init__(self, scenario: Scenario, loop: SimLoop) -> None:
        self.scenario = scenario
        self.loop = loop
        self.history = History()
        self.queues: dict[str, QueueFacts] = {}
        self.known: dict[str, QueueFacts] = {}
        self.lost_answers = 0.0
        self.in_flight: dict[int, InFlight] = {}
        self.calls_left = scenario.steps_max
        self.violations: list[Violation] = []
        self.storage = ObjectStorage(self._random("storage"), self.payloads_settle_s) if scenario.payloads else None
        self.machines = self._make_machines()
        self._messages = 0
        self._spawned: dict[asyncio.Task[None], None] = {}
        self._audits = 0
        self._scheduler = (
            Scheduler(self, self._random("scheduler"), bool(scenario.tiny)) if scenario.scheduling else None
        )
        self._replayer = (
            Replayer(self, self._random("replayer"), self.replayed_messages)
            if scenario.replaying and not scenario.tiny
            else None
        )
        self._readers = Readers(self, self._random("readers"), scenario.queues) if scenario.reading else None
        loop.set_exception_handler(self._unhandled)

    def _make_machines(self) -> list[Machine]:
        scenario = self.scenario
        random = self._random("machine")
        machine = Machine(self.loop, random, self.history, scenario.settings, scenario.log_settings, scenario.sync_s)
        machine.witness = self._make_witness()
        return [machine]

    def _make_witness(self) -> Witness:
        return Witness(self.storage.written.__getitem__ if self.storage is not None else no_objects)

    def patches(self) -> Patches:
        """Replacements of the real code for the whole run."""
        return self.storage.patches() if self.storage is not None else []

    @property
    def machine(self) -> Machine:
        """The only machine, or the first."""
        return self.machines[0]

    def machine_for(self, random: Random) -> Machine:
        return self.machines[0]

    @property
    def broken(self) -> str:
        """Why a node does not start any more."""
        return next((machine.broken for machine in self.machines if machine.broken), "")

    def violated(self, checker: str, text: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX:
            self.history.say(self.loop.time(), "checker", f"{checker}: {text}")
            self.violations.append(Violation(checker, text))

    def next_message(self) -> int:
        self._messages += 1
        return self._messages

    def _random(self, purpose: str) -> Random:
        return Random(f"{purpose} {self.scenario.seed}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "task" in context and "destroyed" in context.get("message", ""):
            return  # a crash leaves tasks unfinished, and the time of their collection is arbitrary
        future = context.get("future")
        if "never retrieved" in context.get("message", "") and not isinstance(future, asyncio.Task):
            return  # its reader was a dead node
        problem = context.get("exception")
        if isinstance(problem, BrokenOff):
            return  # intended, in a callback
        if isinstance(problem, BatonError) and "never retrieved" in context.get("message", ""):
            return  # the answer to a request whose node crashed before sending it
        text = "".join(traceback.format_exception(problem)) if problem is not None else ""
        self.violated("exception", f"{context.get('message')} {text}")

    # --- the course of a run --------------------------------------------------------------------

    async def run(self) -> None:
        machine, scenario = self.machine, self.scenario
        await machine.start()
        supervisor = self.loop.create_task(machine.supervise())
        await self._set_up()
        chaos = Chaos(machine, self, self._random("chaos"), scenario.faults)
        faults = scenario.faults
        self.lost_answers = faults.lost_answers
        machine.loss_rate = faults.lost_answers if faults.lost_between is None else faults.lost_between
        troubles = [self.loop.create_task(work) for work in (*chaos.tasks(), *self._storage_troubles())]
        actors = [self.loop.create_task(work) for work in (*self._actors(), self._audit_often())]
        await self._until(scenario.duration_s)
        await self._end(troubles)
        chaos.heal()
        await self._close(actors)
        await self._end([*self._spawned, supervisor])
        await machine.stop()
        if not machine.broken:
            await machine.start()
            self._note_growth()
            self._audit(replay=True)
            machine.crash("at the end")
        await asyncio.sleep(0)
        self._finish()

    def _storage_troubles(self) -> list[Coroutine[Any, Any, None]]:
        return [self.storage.fail_often()] if self.storage is not None else []

    async def _close(self, actors: list[asyncio.Task[None]]) -> None:
        """All faults have ended: start nothing new, and check that everything is served again."""
        self.lost_answers = 0.0
        if self.storage is not None:
            self.storage.fail_rate = 0.0
        self.calls_left = 0
        scenario = self.scenario
        closing = Closing(self, self._random("closing"), scenario.queues, scenario.settings, scenario.tiny)
        if not self.broken:
            await closing.all_answered()
        await self._end(actors)
        self.calls_left = 1_000_000
        if not self.broken:
            await self._settle()
            if scenario.pausing:
                await closing.resume()
            await self._all_done()
            if not await self._let_sweep():
                return  # a message without its body cannot be received
            await closing.drain(self.drain_rounds_max)
            await self._look_for_leftovers()
            await self._look_for_unneeded_objects()
        if not self.broken and self.scenario.tiny:
            await closing.examine(self.forgets_in_the_end)
            await closing.drain(self.drain_rounds_max)
            await self._look_for_leftovers()

    async def _all_done(self) -> None:
        """Check that schedules, replays and reader groups have done all that they had to do."""
        if self._scheduler is not None:
            for text in await self._scheduler.all_fired():
                self.violated("schedules", text)
        if self._replayer is not None:
            for text in await self._replayer.all_replayed():
                self.violated("replays", text)
        if self._readers is not None:
            for text in await self._readers.all_read():
                self.violated("readers", text)

    async def _let_sweep(self) -> bool:
        """Give the sweeper the time to delete objects of messages that still exist, if it is wrong. Returns whether
        all messages have their objects.
        """
        if self.storage is None:
            return True
        await asyncio.sleep(self.storage.swept_s)
        return self._have_objects()

    def _have_objects(self) -> bool:
        missing = [] if self.storage is None else [*self.storage.missing(self.machine.witness.fold())]
        for text in missing[:5]:
            self.violated("payloads", text)
        return not missing

    async def _look_for_unneeded_objects(self) -> None:
        if self.storage is None or self.broken:
            return
        await asyncio.sleep(self.storage.swept_s)
        nodes = [machine.node for machine in self.machines if machine.node is not None]
        queues = [queue for node in nodes for queue in node.catalog.current().queues.values()]
        retaining = {queue.number for queue in queues if queue.policy.retain_ms}
        for text in self.storage.unneeded(self.machine.witness.fold(), retaining)[:5]:
            self.violated("payloads", text)

    async def _look_for_leftovers(self) -> None:
        if self._leftovers():
            await asyncio.sleep(self.leftovers_s)
        for text in self._leftovers():
            self.violated("leftovers", text)

    def _leftovers(self) -> list[str]:
        if self.in_flight:
            return []  # a call is in progress, or was interrupted
        nodes = [(machine.name, machine.node) for machine in self.machines if machine.node is not None]
        return [f"{name}: {text}" for name, node in nodes for text in leftovers(node)]

    async def _settle(self) -> None:
        """Wait until everything that should serve is up again."""

    @staticmethod
    async def _end(tasks: list[asyncio.Task[None]]) -> None:
        """Stop tasks, and raise the error of any task that failed."""
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _until(self, seconds: float) -> None:
        for _ in range(int(seconds * 2)):
            if self.broken or self.calls_left <= 0:
                return
            await asyncio.sleep(0.5)

    def _actors(self) -> list[Coroutine[Any, Any, None]]:
        scenario = self.scenario
        plans = scenario.queues
        producers = [
            Producer(f"producer {at}", self, self._random(f"producer {at}"), plans, scenario.think_s, scenario.unnamed)
            for at in range(scenario.producers)
        ]
        consumers = [
            Consumer(f"consumer {at}", self, self._random(f"consumer {at}"), scenario.think_s)
            for at in range(scenario.consumers)
        ]
        operator = Operator(self, self._random("operator"), plans)
        grower = Grower(self, self._random("grower"), plans)
        crew = Crew(self, self._random("crew"), plans)
        actors: list[Actor] = [*producers, *consumers, operator, grower, crew]
        if scenario.pausing:
            actors.append(Pauser(self, self._random("pauser"), plans))
        if self._scheduler is not None:
            actors.append(self._scheduler)
        if self._replayer is not None:
            actors.append(self._replayer)
        if self._readers is not None:
            actors.append(self._readers)
        if scenario.tiny:
            actors += self._crowds()
        return [actor.run() for actor in actors]

    def _crowds(self) -> list[Actor]:
        return crowds(self, self.scenario, self._random)

    async def _set_up(self) -> None:
        for plan in self.scenario.queues:
            await self.make_queue(plan)
            assert plan.name in self.queues, f"queue {plan.name} cannot be made"

    async def make_queue(self, plan: QueuePlan) -> None:
        """Create or re-create a queue, with as many attempts as that takes."""
        random = self._random(f"queue {plan.name} {len(self.known)}")
        for _ in range(SETUP_TRIES_MAX):
            machine = self.machine_for(random)
            node = machine.node
            try:
                if node is None:
                    raise Gone
                async with asyncio.timeout(ANSWER_S):
                    entry = await machine.run(node.broker.create_queue(ACCOUNT, plan.name, plan.attributes, {}))
            except TimeoutError:
                self.violated("liveness", f"queue {plan.name} is not made, and there is no answer after {ANSWER_S} s")
                return
            except (Gone, BatonError):
                await asyncio.sleep(0.2)
                continue
            if entry.number not in (facts.number for facts in self.known.values()):
                self._meet(plan, entry)
            return

    def _meet(self, plan: QueuePlan, entry: Queue) -> None:
        """Register a new queue. The first queue of a name has that name here too."""
        before = sum(facts.called == plan.name for facts in self.known.values())
        name = f"{plan.name}@{before + 1}" if before else plan.name
        self.queues.pop(self.current_name(plan.name), None)
        self.queues[name] = self.known[name] = _facts(name, entry, self.scenario.settings)
        self.history.say(self.loop.time(), "set-up", f"queue {entry.number} is {name}, on shard {entry.shard}")

    def _note_growth(self) -> None:
        """Record the shards that each queue has at the end."""
        for machine in self.machines:
            for name, facts in self.known.items():
                entry = machine.node.broker.queue_by_number(facts.number) if machine.node is not None else None
                if entry is not None and len(entry.shards) > len(self.known[name].shards):  # a node may be behind
                    self.known[name] = replace(facts, shards=entry.shards)

    def current_name(self, called: str) -> str:
        """The simulator's name for the queue that has this name now."""
        return next((facts.name for facts in self.queues.values() if facts.called == called), called)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start background work, which lasts until the end of the run at most."""
        task = self.loop.create_task(work)
        self._spawned[task] = None
        task.add_done_callback(lambda task: self._spawned.pop(task, None))

    # --- looking ----------------------------------------------------------------------------------

    async def _audit_often(self) -> None:
        random = self._random("audit")
        while True:
            await asyncio.sleep(random.expovariate(1 / AUDIT_S))
            self._audits += 1
            self._audit(replay=self._audits % 3 == 0)

    def _audit(self, *, replay: bool) -> None:
        self._have_objects()
        node = self.machine.node
        if node is not None:
            for text in audit(node, self.machine.witness, replay=replay):
                self.violated("audit", text)

    def _finish(self) -> None:
        for text in self.machine.witness.lost:
            self.violated("durability", text)
        if self.broken:
            self.violated("recovery", self.broken)
        evidence = Evidence(self.history, self.machine.witness.fold(), list(self.known.values()))
        for violation in check_all(evidence):
            if len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(violation)

    def acknowledged(self) -> int:
        return sum(answer.outcome == OK for call in self.history.of(Sending) for answer in call.answers)

    def summary(self) -> str:
        delivered = sum(len(call.deliveries) for call in self.history.of(Receiving))
        machine = self.machine
        return (
            f"{len(self.history.calls)} calls, {self.acknowledged()} messages acknowledged, {delivered} deliveries, "
            f"{machine.lives} lives, {machine.crashes} crashes, {machine.witness.count()} frames, "
            f"{self.loop.time():.0f} s{self._summary_of_others()}"
        )

    def _summary_of_others(self) -> str:
        """What schedules, replays and reader groups did."""
        parts: list[str] = []
        if self._scheduler is not None:
            books = self.machine.witness.fold().books.values()
            parts.append(f"{sum(len(fired) for book in books for fired in book.firings.values())} firings")
        if self._replayer is not None:
            parts.append(f"{len(self._replayer.targets)} replays")
        if self.storage is not None:
            parts.append(f"{len(self.storage.written)} objects, {self.storage.deleted} deleted")
        if self._readers is not None:
            parts.append(f"{self._readers.positions_read} positions read")
        return "".join(f", {part}" for part in parts)


def _facts(name: str, entry: Queue, settings: Settings) -> QueueFacts:
    policy = entry.policy
    return QueueFacts(
        name=name,
        called=entry.name,
        number=entry.number,
        shard=entry.shard,
        fifo=policy.fifo,
        strict=policy.strict_receipts,
        delay_ms=policy.delay_ms,
        visibility_ms=policy.visibility_ms,
        dedup_window_ms=policy.dedup_window_ms,
        dedup_per_group=policy.dedup_per_group,
        dedup_lives=policy.dedup_lives,
        once_window_ms=int(settings.idempotency_hours * 3_600_000),
        forgets_invocations=settings.shard_limits.sdk_names_max < DEFAULT_LIMITS.sdk_names_max,
    )


Record = Callable[[Simulation], None]  # called with a finished run


def simulate(
    seed: int, steps: int | None = None, bug: str | None = None, record: Record = lambda simulation: None
) -> Outcome:
    """Run one seed to its end, with a bug planted if one is named (see bugs.py)."""
    scenario = choose(seed, steps)
    with planted(bug), patched([*scenario.tiny.patches(), *receives_that_break_off()]):
        return run_to_its_end(lambda loop: Simulation(scenario, loop), SimLoop(), bug, record)


def run_to_its_end(make: Callable[[SimLoop], Simulation], loop: SimLoop, bug: str | None, record: Record) -> Outcome:
    simulation = make(loop)
    noted = purge_points_noted(simulation.history, simulation.machine.witness, simulation.known)
    with quiet_logging(partial(simulation.violated, "exception")), patched([*noted, *simulation.patches()]):
        try:
            loop.run_until_complete(simulation.run())
        except Exception as problem:
            simulation.violated("exception", "".join(traceback.format_exception(problem)))
        for machine in simulation.machines:
            loop.end_life(machine.life)  # ends in order what an exception left running
        loop.close()
    history = simulation.history
    record(simulation)
    return Outcome(
        simulation.scenario.seed,
        bug,
        history.digest(),
        simulation.acknowledged(),
        simulation.summary(),
        str(simulation.scenario),
        simulation.violations,
        history.lines,
        str(simulation.scenario.tiny),
        set(simulation.scenario.tiny.counts.reached),
        set(simulation.scenario.tiny.counts.left),
    )
