"""A shard, and two with channels between them, against the naive model; and its log against the shard.

After every step the state is valid, shows what the model says, and a follower that was fed every frame has the same
state; at the end a fresh replay of the whole retained log has it, byte for byte. Owners change on the way: a follower,
a snapshot, or a replay (of a log whose front was dropped, too) takes over, and its dump has the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batonq.core.commands import Chosen, Claim, Job, Once
from batonq.core.ids import AWAY, request_hash
from batonq.core.limits import DEFAULT_LIMITS
from batonq.core.payload import Lineage, encode_payload
from batonq.core.policy import QueuePolicy
from batonq.core.records import Reason, State, Type
from batonq.core.shard.commands.operator import Destination
from batonq.errors import BatonError, JobConflict, JobNotFound, QueueDoesNotExist
from sim.limits import LimitCounts, TinyLimit
from tests.core.model import ONCE_MS, PRODUCER_IDLE_MS, RUNNING, Message, Model, uid_of, worlds
from tests.core.rig import Rig, assert_same_state, make_send
from tests.support import ask
from tests.support.profile import FULL

STANDARD, FIFO, STANDARD_DEAD, FIFO_DEAD, LONE = 1, 2, 3, 4, 5
MISSING = 99
QUEUES = (STANDARD, FIFO, STANDARD_DEAD, FIFO_DEAD, LONE)
FIFO_QUEUES = (FIFO, FIFO_DEAD)
HOUR_MS = 3_600_000
HISTORIES = 800 if FULL else 50

times = st.sampled_from((0, 0, 0, 0, 1, 900, 1_000, 1_000, 2_000, 5_000, 30_000, 30_000, 61_000, 300_000))
queues = st.sampled_from((STANDARD, FIFO, STANDARD, FIFO, STANDARD, FIFO, STANDARD_DEAD, FIFO_DEAD, LONE))
picks = st.integers(0, 1 << 16)


# What a policy's fields are chosen from. One draw gives a byte for each: a draw apiece costs more than a command.
POLICY_CHOICES: dict[str, tuple[Any, ...]] = {
    "delay_ms": (0, 0, 0, 5_000),
    "retention_ms": (345_600_000, 345_600_000, 345_600_000, 60_000),
    "dedup_window_ms": (5_000, 300_000),
    "dedup_per_group": (False, True),
    "dedup_lives": (False, True),
    "max_receives": (1, 1, 2, 0),
    "dead_letter_on_failure": (True, True, False),
    "expiry_to_dead_letter": (False, True),
    "strict_receipts": (False, False, False, True),
    "ageing_ms": (0, 1_000, 300_000),
    "in_flight_max": (120_000, 120_000, 120_000, 120_000, 3),
    "messages_max": (0, 0, 0, 0, 0, 4),
    "retry": ("", '{"kind":"schedule","delaysSeconds":[1,5]}'),
    "paused": (*[""] * 9, "delivery", "sends", "both"),
    "deliveries_per_s": (0, 0, 0, 0, 0, 2),
    "only_group": (*[""] * 7, "a"),
    "priority_min": (*[0] * 7, 2),
    "retry_expired": (False, True),
    "retain_ms": (0, 0, 3_000, 60_000),
}

# What limits are when they are tiny, in half of the histories about a third of them. The steps of timers have their
# usual limit: in which order things happen that are due together is not the model's to say when it is cut short.
TINY_LIMITS: dict[str, int] = {
    "slots_max": 6,
    "dedup_entries_max": 2,
    "idempotency_keys_max": 4,
    "sdk_names_max": 1,
    "producers_max": 1,
    "attempts_max": 1,
    "verdicts_max": 4,
    "retries_max": 1,
    "given_up_max": 1,
    "purge_step_max": 1,
    "job_scans_max": 1,
    "job_moves_max": 1,
}
limit_bytes = st.binary(min_size=1 + len(TINY_LIMITS), max_size=1 + len(TINY_LIMITS))
counts = LimitCounts()  # how often each was reached
STEPS_MAX = 1_000
policy_bytes = st.binary(min_size=1 + len(POLICY_CHOICES), max_size=1 + len(POLICY_CHOICES))


def policy(queue: int, dead_shard: int, chosen: bytes) -> QueuePolicy:
    fifo = queue in FIFO_QUEUES
    dead_letter_queues = (0, *[queue + 2] * 7, MISSING) if queue in (STANDARD, FIFO) else (0,)
    return QueuePolicy(
        queue,
        "tenant",
        f"q{queue}.fifo" if fifo else f"q{queue}",
        fifo=fifo,
        dead_letter_queue=dead_letter_queues[chosen[0] % len(dead_letter_queues)],
        dead_letter_shard=dead_shard,
        **{
            name: choices[byte % len(choices)]
            for byte, (name, choices) in zip(chosen[1:], POLICY_CHOICES.items(), strict=True)
        },
    )


class Shown:
    """What a shard shows: every message by queue and sequence, and who first sent it."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.uids: dict[int, str] = {}
        self.views: dict[int, dict[int, Any]] = {}

    def look(self) -> None:
        shard, uids = self.rig.shard, self.uids
        self.views = {}
        for slot in shard.live_slots():
            view = shard.view(slot)
            self.views.setdefault(shard.columns.queue[slot], {})[view.sequence] = view
            if view.sequence not in uids:
                uids[view.sequence] = uid_of(self.rig.payload(view))

    def sequences(self, queue: int, uid: str) -> list[int]:
        return [sequence for sequence in self.views.get(queue, ()) if self.uids[sequence] == uid]

    def state(self, queue: int, sequence: int) -> State | None:
        view = self.views.get(queue, {}).get(sequence)
        return State(view.state) if view is not None else None

    def remembers_attempt(self, queue: int, attempt: str) -> bool:
        return (queue, attempt) in self.rig.shard.attempts.by_key

    def entry_number(self, sequence: int) -> int:
        shard = self.rig.shard
        for slot, (_, number, _, _) in shard.transfers.owed_to.items():
            if shard.columns.sequence[slot] == sequence:
                return number
        return 0


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rigs: dict[int, Rig] = {}
        self.held: list[tuple[int, Claim]] = []
        self.purges: dict[int, int] = {}  # queue → up to which message it is being purged
        self.uid = 0

    # --- the frame of every step -----------------------------------------------------------------

    @initialize(chosen=st.tuples(*[policy_bytes] * len(QUEUES)), shards=st.sampled_from((1, 1, 2)), limits=limit_bytes)
    def begin(self, chosen: tuple[bytes, ...], shards: int, limits: bytes) -> None:
        self.models = worlds(shards)
        tiny: dict[str, Any] = {
            name: TinyLimit(value, name, counts)
            for byte, (name, value) in zip(limits[1:], TINY_LIMITS.items(), strict=True)
            if limits[0] % 2 and byte % 3 == 1
        }
        self.limits = replace(DEFAULT_LIMITS, **tiny)
        for model in self.models.values():
            model.limits = replace(DEFAULT_LIMITS, **{name: int(value) for name, value in tiny.items()})
        self.dead_shard = shards - 1
        for number in range(shards):
            self.rigs[number] = Rig(number)
            self.models[number].sight = Shown(self.rigs[number])
        for queue, each in zip(QUEUES, chosen, strict=True):
            self.set_policy(policy(queue, self.dead_shard, each))

    def home(self, queue: int) -> int:
        """The shard of a queue: dead letters are on the last one."""
        return self.dead_shard if queue in (STANDARD_DEAD, FIFO_DEAD) else 0

    @property
    def now(self) -> int:
        return self.rigs[0].now

    def set_policy(self, policy: QueuePolicy) -> None:
        number = self.home(policy.queue)
        self.rigs[number].shard.set_policy(policy, self.now)
        self.models[number].advance(self.now)
        self.models[number].set_policy(policy)

    def do(
        self,
        number: int,
        later_ms: int,
        command: Callable[[Any], Any],
        check: Callable[[Model, Any], None],
    ) -> Any:
        """Time passes; a command goes to the shard, then with its reply to the model, which must agree."""
        for rig in self.rigs.values():
            rig.now += later_ms
        rig, model = self.rigs[number], self.models[number]
        rig.shard.numbered.idle_ms = PRODUCER_IDLE_MS
        rig.shard.journal.limits = self.limits
        self.try_refused(rig)
        reply: Any
        try:
            reply = command(rig.shard)
        except BatonError as error:
            reply = error
            rig.shard.advance(self.now)  # what was refused at the door did not look at the time
        self.look(number)
        model.advance(self.now)
        try:
            check(model, reply)
        except QueueDoesNotExist:
            assert isinstance(reply, QueueDoesNotExist)
            return None
        assert not isinstance(reply, QueueDoesNotExist)
        return reply

    def try_refused(self, rig: Rig) -> None:
        """Refused transfers that are due are tried again before anything is asked, in as many steps as that takes."""
        for _ in range(STEPS_MAX):
            rig.shard.advance(self.now)
            if not rig.shard.timers.doomed_due:
                rig.shard.advance(self.now)  # what has just arrived may be too old already
                return
        raise AssertionError("refused transfers are tried again without an end")

    def look(self, number: int) -> None:
        self.rows = self.rigs[number].commit()
        sight = self.models[number].sight
        assert isinstance(sight, Shown)
        sight.look()

    def advance(self, number: int) -> None:
        rig = self.rigs[number]
        rig.shard.journal.limits = self.limits
        self.try_refused(rig)
        self.look(number)
        self.models[number].advance(rig.now)

    @invariant()
    def everything_agrees(self) -> None:
        for number, rig in self.rigs.items():
            model = self.models[number]
            if model.time_ms < rig.now:
                self.advance(number)
            rig.check()
            compare(rig, model)

    def teardown(self) -> None:
        for rig in self.rigs.values():
            fresh = rig.replayed()
            fresh.validate()
            assert_same_state(fresh, rig.shard, rig.now)
            check_retained(rig)

    def with_uid(self, message: ask.Message) -> ask.Message:
        """Tell a message from all others, by what its content is not compared by."""
        self.uid += 1
        if message.dedup_id:
            message.trace = f"uid{self.uid}"
        else:
            message.body_md5 = self.uid.to_bytes(16)
        return message

    # --- sends and receives ------------------------------------------------------------------------

    @rule(
        queue=queues,
        later=times,
        count=st.integers(0, 5),
        kinds=st.binary(min_size=5, max_size=5),
        group=st.sampled_from(("a", "b", "c")),
        invocation=st.sampled_from((0, 0, 0, 1, 2, 3)),
        producer=st.sampled_from(("", "", "p", "r")),
        back=st.integers(-2, 3),
    )
    def send(
        self,
        queue: int,
        later: int,
        count: int,
        kinds: bytes,
        group: str,
        invocation: int,
        producer: str = "",
        back: int = 0,
    ) -> None:
        """Messages with delays, priorities, groups, keys, times to live, maxima and producers of their own; or none, to
        ask for a request.
        """
        sends = []
        known = self.models[self.home(queue)].producers.get((queue, producer))
        number = max(0, known.last - back if known is not None else 0)
        for byte in kinds[:count]:
            kind = byte & 63
            fields: dict[str, Any] = {}
            if queue in FIFO_QUEUES or kind % 3 == 1:
                fields["group"] = group if kind % 2 else "d"
            if kind & 12 == 4:
                fields |= {"dedup_id": f"key{kind & 1}", "strict_content": kind & 2 > 0}
            if kind & 12 == 8:
                fields["priority"] = kind & 3
            if kind & 48 == 16 and queue not in FIFO_QUEUES:
                fields["delay_ms"] = 5_000 * (kind & 1)
            if kind & 48 == 32:
                fields["ttl_ms"] = 60_000 if kind & 1 else 1_500
            if kind & 48 == 48:
                fields["max_receives"] = kind & 3
            if producer:
                number += 1 if kind & 31 else back
                fields |= {"producer": producer, "producer_sequence": max(0, number)}
            sends.append(self.with_uid(make_send(f"body{kind >> 4 & 1}", **fields)))
        hashed = request_hash(queue, str(invocation)) | AWAY * (invocation == 3) if invocation else 0
        forgotten = False

        def command(shard: Any) -> Any:
            nonlocal forgotten
            forgotten = shard.requests.table.get(hashed, self.now // 1000) is None
            return ask.send(shard, queue, sends, self.now, hashed)

        self.do(
            self.home(queue),
            later,
            command,
            lambda model, reply: model.send(queue, sends, self.now, hashed, reply, forgotten),
        )

    @rule(
        queue=queues,
        later=times,
        count=st.integers(1, 3),
        kinds=st.binary(min_size=3, max_size=3),
        name=st.sampled_from(("a", "a", "b", "c")),
        content=st.sampled_from(("", "", "", "other")),
    )
    def send_once(self, queue: int, later: int, count: int, kinds: bytes, name: str, content: str) -> None:
        """By a request with an Idempotency-Key, whose messages have deduplication ids more often than not."""
        sends = []
        for byte in kinds[:count]:
            fields: dict[str, Any] = {}
            if queue in FIFO_QUEUES:
                fields["group"] = "abc"[byte % 3]
            if byte & 12:
                fields["dedup_id"] = f"key{byte & 1}"
            sends.append(self.with_uid(make_send("body", **fields)))
        once = Once(name, f"{count} {content}", ONCE_MS)
        self.do(
            self.home(queue),
            later,
            lambda shard: ask.send_once(shard, queue, sends, self.now, once),
            lambda model, reply: model.send_once(queue, sends, self.now, once.name, once.content, reply),
        )

    @rule(
        queue=queues,
        later=times,
        count=st.sampled_from((1, 2, 10)),
        visibility=st.sampled_from((None, None, 0, 2_000, HOUR_MS)),
        attempt=st.sampled_from(("", "", "A", "B")),
    )
    def receive(self, queue: int, later: int, count: int, visibility: int | None, attempt: str) -> None:
        number = self.home(queue)
        leases = self.do(
            number,
            later,
            lambda shard: ask.receive(shard, queue, count, visibility, self.now, "holder", attempt),
            lambda model, reply: model.receive(queue, count, visibility, self.now, "holder", attempt, reply),
        )
        for lease in leases if isinstance(leases, list) else ():
            self.held.append((queue, Claim(lease.slot, lease.sequence, lease.epoch)))
            check_past(self.rigs[number], self.models[number].find(queue, lease.sequence), lease)

    @rule(queue=queues, later=times, count=st.integers(1, 5), kind=st.integers(0, 63), then=st.sampled_from((0, 1, 2)))
    def work(self, queue: int, later: int, count: int, kind: int, then: int) -> None:
        """A burst of sends and a receive of all; then nothing, or all fail by running out, or all are done."""
        self.send(queue, later, count, bytes((kind, 0, kind, 0, kind ^ 1)), "a", 0)
        before = len(self.held)
        self.receive(queue, 0, 10, None, "")
        claims = [claim for _, claim in self.held[before:]]
        if then == 1:
            self.do(self.home(queue), 30_000, lambda shard: shard.advance(self.now), lambda model, reply: None)
        elif then == 2 and claims:
            self.do(
                self.home(queue),
                0,
                lambda shard: ask.delete(shard, queue, claims, self.now),
                lambda model, reply: model.delete(queue, claims, self.now, False, reply),
            )

    # --- receipts ----------------------------------------------------------------------------------

    def claims(self, pick: int, count: int) -> tuple[int, list[Claim]]:
        """Receipts of one queue, newer ones more often; some stay in use after they served."""
        queue = self.held[-1 - pick % min(len(self.held), 4)][0]
        mine = [entry for entry in self.held if entry[0] == queue]
        start = max(0, len(mine) - 1 - (pick >> 2) % min(len(mine), 6))
        taken = mine[start : start + count]
        if pick & 1:
            self.held = [entry for entry in self.held if entry not in taken]
        return queue, [claim for _, claim in taken]

    @precondition(lambda self: self.held)
    @rule(later=times, pick=picks, count=st.integers(1, 3), strict=st.sampled_from((False, False, True)))
    def delete(self, later: int, pick: int, count: int, strict: bool) -> None:
        queue, claims = self.claims(pick, count)
        self.do(
            self.home(queue),
            later,
            lambda shard: ask.delete(shard, queue, claims, self.now, strict),
            lambda model, reply: model.delete(queue, claims, self.now, strict, reply),
        )

    @precondition(lambda self: self.held)
    @rule(
        later=times,
        pick=picks,
        visibility=st.sampled_from((0, 1_000, 60_000, HOUR_MS, 12 * HOUR_MS)),
        strict=st.sampled_from((False, False, True)),
    )
    def change(self, later: int, pick: int, visibility: int, strict: bool) -> None:
        queue, claims = self.claims(pick, 1 + (pick >> 8 & 1))
        changes = [(claim, visibility) for claim in claims]
        self.do(
            self.home(queue),
            later,
            lambda shard: ask.change_visibility(shard, queue, changes, self.now, strict),
            lambda model, reply: model.change(queue, changes, self.now, strict, reply),
        )

    @precondition(lambda self: self.held)
    @rule(pick=picks, count=st.integers(1, 3))
    def give_back(self, pick: int, count: int) -> None:
        queue, claims = self.claims(pick, count)
        self.do(
            self.home(queue),
            0,
            lambda shard: shard.give_back(queue, claims, self.now),
            lambda model, reply: model.undelivered(queue, claims, self.now),
        )

    @precondition(lambda self: self.held)
    @rule(later=times, pick=picks, delay=st.sampled_from((None, 0, 3_000, 60_001)), kind=st.integers(0, 11))
    def nack(self, later: int, pick: int, delay: int | None, kind: int) -> None:
        queue, claims = self.claims(pick, 1)
        words = "why" * (kind & 1), "E" * (kind >> 1 & 1)
        nacks = [ask.Nack(claim, delay, *words, dead_letter=kind in (6, 7, 11), untried=kind > 7) for claim in claims]
        self.do(
            self.home(queue),
            later,
            lambda shard: ask.nack(shard, queue, nacks, self.now),
            lambda model, reply: model.nack(queue, nacks, self.now, reply),
        )

    # --- an operator ---------------------------------------------------------------------------------

    @rule(
        later=times,
        queue=queues,
        pick=picks,
        what=st.sampled_from(("delete", "edit", "retry", "retry", "retry")),
        where=st.sampled_from((0, 0, STANDARD, FIFO)),
    )
    def operator(self, later: int, queue: int, pick: int, what: str, where: int) -> None:
        """An operator names a message, of any state, by the place where it was last seen."""
        number = self.home(queue)
        rig = self.rigs[number]
        rig.commit()
        views = (
            rig.messages(queue) if queue in self.models[number].queues and not rig.shard.queues[queue].closed else []
        )
        if not views:
            return
        view = views[pick % len(views)]
        place = queue, view.slot, view.sequence
        to = (self.home(where), where) if where else None
        destination = Destination(where, self.home(where)) if where else None
        payload = encode_payload(rig.payload(view)._replace(body=b"edited by an operator"))
        commands: dict[str, Callable[[Any], Any]] = {
            "delete": lambda shard: shard.delete_message(*place, self.now),
            "edit": lambda shard: shard.edit_message(*place, payload, self.now),
            "retry": lambda shard: shard.retry_message(*place, destination, self.now),
        }
        self.do(
            number,
            later,
            commands[what],
            lambda model, reply: model.operator(what, queue, view.sequence, to, self.now, reply),
        )

    # --- control -----------------------------------------------------------------------------------

    @rule(
        chosen=policy_bytes,
        queue=queues,
        what=st.sampled_from(("policy", "policy", "policy", "purge", "purge", "close")),
    )
    def control(self, chosen: bytes, queue: int, what: str) -> None:
        number = self.home(queue)
        known = self.models[number].queues.get(queue)
        if known is None:
            return
        if what == "policy" and not known.closed:
            self.set_policy(policy(queue, self.dead_shard, chosen))
        elif what == "close" and queue != FIFO and not known.closed and chosen[0] & 3 == 0:
            self.do(
                number,
                0,
                lambda shard: shard.close_queue(queue, 1, self.now),
                lambda model, reply: setattr(model.open_queue(queue), "closed", True),
            )
            what = "purge"
        if what == "purge" and queue in self.models[number].queues:
            self.purges[queue] = self.rigs[number].shard.next_sequence - 1
            if chosen[1] & 1 or known.closed:
                while queue in self.purges:
                    self.purge(0, 0)

    @precondition(lambda self: self.purges)
    @rule(later=times, pick=picks)
    def purge(self, later: int, pick: int) -> None:
        """One step of a purge: of what the queue had when it began, whatever was sent meanwhile."""
        queue = list(self.purges)[pick % len(self.purges)]
        number, through = self.home(queue), self.purges[queue]
        if queue not in self.models[number].queues:  # it was closed, and its last message arrived elsewhere
            del self.purges[queue]
            return

        def check(model: Model, reply: Any) -> None:
            model.purge(queue, through, reply)
            if reply[1]:
                del self.purges[queue]

        self.do(number, later, lambda shard: shard.purge(queue, self.now, through), check)

    # --- jobs --------------------------------------------------------------------------------------

    @rule(
        pick=picks,
        where=st.sampled_from((0, 0, 0, STANDARD, FIFO, MISSING)),
        rate=st.sampled_from((1, 100)),
        then=st.sampled_from(("", "", "cancel", "pause", "resume")),
        most=st.sampled_from((0, 0, 0, 2)),
        pause_share=st.sampled_from((1.0, 1.0, 0.5, 0.0)),
        selection=st.sampled_from(("", "", "some")),
    )
    def job(self, pick: int, where: int, rate: int, then: str, most: int, pause_share: float, selection: str) -> None:
        """Start a job on a queue that has none; else stop the one that runs, or let all of them go a step."""
        sources = (STANDARD_DEAD, FIFO_DEAD, LONE, FIFO)
        filled = [q for q in sources if self.models[self.home(q)].of(q, State.VISIBLE, State.DEAD)] or sources
        source = filled[pick % len(filled)]
        number = self.home(source)
        model = self.models[number]
        running = {key: j for key, j in model.jobs.items() if j.source == source and j.state in RUNNING}
        if not running or rate == 1:
            job = Job(
                f"job{number}-{len(self.models[number].jobs)}",
                source,
                where,
                self.home(where),
                rate,
                "",
                0,
                0,
                only_dead=source in (LONE, FIFO),
                max_messages=most,
                pause_share=pause_share,
                selection=selection,
            )
            self.start_job(number, job, bool(running))
        elif then:
            self.stop_job(number, next(iter(running)), then)
        self.step_jobs(0)

    def start_job(self, number: int, job: Job, conflict: bool) -> None:

        def check(model: Model, reply: Any) -> None:
            model.open_queue(job.source)
            if conflict or model.redriving(job.source):
                assert isinstance(reply, JobConflict)
            else:
                assert isinstance(reply, Job)
                model.start_job(job, self.now)

        self.do(number, 0, lambda shard: shard.start_job(job, self.now), check)

    def stop_job(self, number: int, job_id: str, how: str) -> None:
        def check(model: Model, reply: Any) -> None:
            if model.jobs[job_id].state in ("RUNNING", "PAUSED"):
                expected = {"cancel": "CANCELLING", "pause": "PAUSED", "resume": "RUNNING"}[how]
                assert reply.state == expected
                model.jobs[job_id].state = expected
            else:
                assert isinstance(reply, JobNotFound)

        commands: dict[str, Callable[[Any], Any]] = {
            "cancel": lambda shard: shard.cancel_job(job_id, self.now),
            "pause": lambda shard: shard.pause_job(job_id, "by request", self.now),
            "resume": lambda shard: shard.resume_job(job_id, self.now),
        }
        self.do(number, 0, commands[how], check)

    @precondition(lambda self: any(job.state in RUNNING for m in self.models.values() for job in m.jobs.values()))
    @rule(later=times, pick=picks)
    def step_jobs(self, later: int, pick: int = 0) -> None:
        for number, rig in self.rigs.items():
            self.do(number, later, lambda shard: shard.step_jobs(self.now), self.check_step)
            later = 0
            for job_id, most in dict(rig.shard.to_examine).items():
                self.choose(number, job_id, most, pick)

    def choose(self, number: int, job_id: str, most: int, pick: int) -> None:
        """What node/ does for a job with a selection: looks at some messages, and picks and changes some of those."""
        rig = self.rigs[number]
        job = rig.shard.jobs[job_id]
        views = [view for view in rig.messages(job.source) if job.cursor < view.sequence <= job.through_sequence]
        looked_at = views[: 1 + pick % 4]
        chosen: list[Chosen] = []
        examined = 0
        for view in looked_at:
            examined += view.sequence > job.seen
            if len(chosen) < most and (pick >> view.sequence % 8 & 1 or view.slot in rig.shard.messages.edited):
                payload = None
                if pick >> 8 & 1 and view.slot not in rig.shard.messages.edited:
                    payload = encode_payload(rig.payload(view)._replace(body=b"edited"))
                chosen.append(Chosen(view.slot, view.sequence, payload, examined))
        through = looked_at[-1].sequence if len(looked_at) < len(views) else job.through_sequence
        self.do(
            number,
            0,
            lambda shard: shard.choose(job_id, job.cursor, examined, through, chosen, self.now),
            self.check_step,
        )

    def check_step(self, model: Model, _: Any) -> None:
        for row in self.rows:
            if row.type is Type.OWED and row.reason == Reason.REDRIVE:
                model.redrive(row.queue, row.sequence, self.now)
        model.end_step({job_id: job.state for job_id, job in self.rigs[model.number].shard.jobs.items()})

    # --- channels ----------------------------------------------------------------------------------

    @precondition(lambda self: any(rig.shard.unsettled() for rig in self.rigs.values()))
    @rule(way=st.sampled_from(((0, 1), (1, 0))), later=times, limit=st.integers(1, 4), lost=st.integers(0, 3))
    def deliver(self, way: tuple[int, int], later: int, limit: int, lost: int) -> None:
        """Entries are sent, perhaps for the second time; the answer may be lost on its way."""
        source, destination = self.rigs[way[0]], way[1]
        entries = source.shard.pending_entries(destination, 0, limit)
        if not entries:
            way = way[::-1]
            source, destination = self.rigs[way[0]], way[1]
            entries = source.shard.pending_entries(destination, 0, limit)
        arrivals = [source.arrival(entry) for entry in entries]

        def check(model: Model, reply: Any) -> None:
            expected = [model.arrive(self.models[way[0]], entry.number, self.now) for entry in entries]
            assert [(number, Reason(verdict)) for number, verdict in reply] == [
                (entry.number, verdict) for entry, verdict in zip(entries, expected, strict=True)
            ]

        results = self.do(destination, later, lambda shard: shard.arrive(arrivals, self.now), check)
        if lost == 0:
            return

        def settle(model: Model, _: Any) -> None:
            for number, verdict in results:
                model.settle(destination, number, Reason(verdict), self.now)

        for _ in range(2 if lost == 1 else 1):  # the answer may come twice
            self.do(way[0], 0, lambda shard: shard.settle(destination, results, self.now), settle)

    # --- owners change -----------------------------------------------------------------------------

    @rule(
        pick=picks,
        how=st.sampled_from(("follower", "snapshot", "replay", "truncate", "truncate")),
        later=times,
        grace=st.sampled_from((0, 10_000)),
    )
    def restart(self, pick: int, how: str, later: int, grace: int) -> None:
        """Another owner takes over, or the log's front is dropped and the follower starts from what is left."""
        rig = self.rigs[pick % len(self.rigs)]
        rig.check()
        if how == "truncate":
            first = min(rig.frames)
            boundary = first + (pick >> 4) % (rig.next_frame - first + 1)
            rig.truncate(max(first, min(boundary, rig.shard.retained_front(rig.now))))
            return
        successor = {"follower": lambda: rig.follower, "snapshot": rig.loaded, "replay": rig.replayed}[how]()
        successor.validate()
        for other in self.rigs.values():
            other.now += later
        rig.restart(successor, grace)
        self.models[rig.number].restart(grace, how == "snapshot")
        self.advance(rig.number)


def check_retained(rig: Rig) -> None:
    """What is retained of a queue is the newest part of what entered it, with nothing left out."""
    rows = [row for number in sorted(rig.frames) for row in rig.frames[number].rows()]
    for queue, retained in rig.shard.messages.retaining.items():
        entered = [
            (row.position, -(-row.time // 1000))
            for row in rows
            if row.queue == queue and row.sequence and row.type in (Type.SENT, Type.ARRIVED)
        ]
        kept = retained.entries()
        assert kept == entered[len(entered) - len(kept) :]


def compare(rig: Rig, model: Model) -> None:
    """Every message and every total, as the shard shows them, is what the model says."""
    shard = rig.shard
    assert shard.next_sequence == model.last_sequence + 1
    shown = []
    for slot in shard.live_slots():
        view = shard.view(slot)
        shown.append(
            (view.sequence, shard.columns.queue[slot], *view[2:10], view.holder, view.error_class, view.reason)
        )
    shown.sort()
    expected = [picture(message) for message in model.messages]
    assert shown == expected, f"only shown {set(shown) - set(expected)}, only expected {set(expected) - set(shown)}"
    assert shard.queues.keys() == model.queues.keys()
    for number, queue in model.queues.items():
        totals = vars(queue.totals)
        assert {name: getattr(shard.queues[number], name) for name in totals} == totals
    assert {job_id: (job.state, job.moved, job.to_move, job.died_again) for job_id, job in shard.jobs.items()} == {
        job_id: (job.state, job.moved, job.to_move, job.died_again)
        for job_id, job in model.jobs.items()
        if job_id in shard.jobs
    }


def picture(message: Message) -> tuple[Any, ...]:
    first = max(message.first_received_ms, message.sent_ms) if message.first_received_ms else 0
    return (
        message.sequence,
        message.queue,
        int(message.state),
        message.until_ms,
        message.leases,
        message.receives,
        message.sent_ms,
        first,
        message.expires_s * 1000,
        message.priority,
        message.holder,
        message.error_class,
        message.reason,
    )


def check_past(rig: Rig, message: Message, lease: Any) -> None:
    """A consumer sees where a message has been."""
    payload = rig.payload(lease)
    lineage = Lineage.decode(payload.lineage)
    assert (uid_of(payload), payload.group) == (message.uid, message.group)
    past = message.past
    assert (
        lineage.message_id,
        lineage.first_queue,
        lineage.first_id,
        lineage.first_failure_ms,
        lineage.last_failure_ms,
        lineage.attempts,
        lineage.error_class,
        lineage.reason,
        lineage.source_queue,
    ) == tuple(vars(past).values())


TestAgainstModel = Machine.TestCase
TestAgainstModel.settings = settings(max_examples=HISTORIES)
