"""The words of a scenario, and what each does to the shards.

    queue jobs visibility=30s max-receives=3 dead-letter=morgue
    send jobs a b group=g
    receive jobs max=1 by=worker
    delete jobs a/1

A message is named by its body, a receipt by body and lease (`a/1`: the first lease of a). Times are written 1h30m, 5s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from batonq.core.commands import Chosen, Claim, Job, Lease, MessageView, Send
from batonq.core.ids import key_hash
from batonq.core.payload import decode, encode_payload
from batonq.core.policy import MISSING_QUEUE, QueuePolicy
from batonq.core.records import Reason, Type
from batonq.core.schedule import Schedule
from batonq.core.shard.commands.operator import Destination
from batonq.core.shard.commands.schedules import Firing
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.core.topics.subscription import Subscription
from batonq.errors import BatonError
from tests.core.rig import Rig, make_send
from tests.golden.trace import Trace, moment, parse_span, words
from tests.support import ask

_SPANS = {
    "visibility": "visibility_ms",
    "delay": "delay_ms",
    "retention": "retention_ms",
    "dedup-window": "dedup_window_ms",
    "ageing": "ageing_ms",
    "retain": "retain_ms",
}
_NUMBERS = {"max-receives": "max_receives", "in-flight-max": "in_flight_max", "messages-max": "messages_max"}
_NUMBERS |= {"per-second": "deliveries_per_s", "priority-min": "priority_min"}
_TEXTS = {"paused": "paused", "only-group": "only_group"}
_SWITCHES = {
    "fifo": {"fifo": True},
    "strict": {"strict_receipts": True},
    "dead-letter-on-failure": {"dead_letter_on_failure": True},
    "expiry-to-dead-letter": {"expiry_to_dead_letter": True},
    "dedup-per-group": {"dedup_per_group": True},
    "dedup-lives": {"dedup_lives": True},
    "retry-expired": {"retry_expired": True},
    "topic": {"topic": True},
}


# A reply in words; one that needs the payload can be put into words only when its frame is committed.
Answer = str | Callable[[], str]


class Arguments:
    """`word word key=value key`: words in order, then options; what is not asked for is a mistake in the script."""

    def __init__(self, words_: list[str]) -> None:
        self.words = [word for word in words_ if "=" not in word]
        self._options = dict(word.split("=", 1) for word in words_ if "=" in word)

    def take(self) -> str:
        return self.words.pop(0)

    def has(self, word: str) -> bool:
        if word in self.words:
            self.words.remove(word)
            return True
        return False

    def text(self, key: str, default: str = "") -> str:
        return self._options.pop(key, default)

    def number(self, key: str, default: int = 0) -> int:
        return int(self._options.pop(key, default))

    def span(self, key: str) -> int | None:
        text = self._options.pop(key, None)
        return None if text is None else parse_span(text)

    def end(self) -> None:
        assert not self.words and not self._options, f"not understood: {self.words} {self._options}"


class Scenario:
    """Shards that a script drives. Each command yields the lines of its trace."""

    def __init__(self) -> None:
        self.rigs = {0: Rig(0)}
        self.queues: dict[str, int] = {}
        self.shards: dict[int, int] = {}
        self.subscriptions: dict[tuple[str, str], int] = {}
        self.claims: dict[tuple[str, str], Claim] = {}
        self.members: dict[tuple[str, str], int] = {}  # reader group and member → the epoch it was told
        self.trace = Trace(self.queue_name)
        self._answers: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def queue_name(self, number: int) -> str:
        return next((name for name, other in self.queues.items() if other == number), f"queue {number}")

    @property
    def now(self) -> int:
        return self.rigs[0].now

    def rig_of(self, queue: str) -> Rig:
        return self.rigs[self.shards[self.queues[queue]]]

    def run(self, line: str) -> Iterator[str]:
        """The records that the command wrote, then what it answered."""
        verb, *rest = line.split()
        arguments = Arguments(rest)
        command: Callable[[Arguments], Sequence[Answer]] = getattr(self, f"do_{verb.replace('-', '_')}")
        answers: Sequence[Answer]
        try:
            answers = command(arguments)
        except BatonError as error:
            answers = [self.trace.error(error)]
        arguments.end()
        for number, rig in self.rigs.items():
            for row in rig.check():
                if text := self.trace.record(number, row):
                    yield f"{text}" if len(self.rigs) == 1 else f"[{number}] {text}"
        yield from (f"> {answer if isinstance(answer, str) else answer()}" for answer in answers)

    # --- queues --------------------------------------------------------------------------------

    def do_queue(self, arguments: Arguments) -> list[str]:
        """A new queue, or another policy for an old one."""
        name = arguments.take()
        number = self.queues.setdefault(name, len(self.queues) + 1)
        shard = arguments.number("shard", self.shards.get(number, 0))
        self.shards[number] = shard
        if shard not in self.rigs:
            self.rigs[shard] = Rig(shard, self.now)
        fields: dict[str, Any] = {}
        for word in list(arguments.words):
            fields |= _SWITCHES[word]
            arguments.words.remove(word)
        for key, field in _SPANS.items():
            if (value := arguments.span(key)) is not None:
                fields[field] = value
        for key, field in _NUMBERS.items():
            if value := arguments.number(key):
                fields[field] = value
        for key, field in _TEXTS.items():
            if text := arguments.text(key):
                fields[field] = text
        if retry := arguments.text("retry"):
            delays = [parse_span(delay) / 1000 for delay in retry.split(",")]
            fields["retry"] = json.dumps({"kind": "schedule", "delaysSeconds": delays})
        if dead := arguments.text("dead-letter"):
            fields["dead_letter_queue"] = self.queues.get(dead, 99)
            fields["dead_letter_shard"] = self.shards.get(fields["dead_letter_queue"], 0)
        self.rigs[shard].shard.set_policy(QueuePolicy(number, "tenant", name, **fields), self.now)
        return []

    def do_schedule(self, arguments: Arguments) -> list[str]:
        """A new schedule, or another definition of an old one: `schedule jobs nightly next=10s`."""
        queue, name = arguments.take(), arguments.take()
        shard = self.rig_of(queue).shard
        old = shard.schedules.find(self.queues[queue], name)
        paused, next_ms = arguments.has("paused"), self.now + (arguments.span("next") or 0)
        fields: dict[str, Any] = {"paused": paused, "next_ms": next_ms}
        if old is None:
            made = Schedule(queue=self.queues[queue], name=name, timing="{}", message="{}", revision=1, **fields)
            shard.create_schedule(made, self.now)
        else:
            cleared: dict[str, Any] = {"why": "", "why_code": "", "waiting_ms": 0}
            shard.change_schedule(replace(old, revision=old.revision + 1, **fields, **cleared), self.now)
        return []

    def do_unschedule(self, arguments: Arguments) -> list[str]:
        queue, name = arguments.take(), arguments.take()
        self.rig_of(queue).shard.delete_schedule(self.queues[queue], name, self.now)
        return []

    def do_fire(self, arguments: Arguments) -> list[str]:
        """`fire jobs nightly BODY every=10s`: the due time that has come, and the next one; `skipped=2` due times are
        left out, and without a body nothing is sent; `again` does it for a due time that is over.
        """
        queue, name = arguments.take(), arguments.take()
        again, every = arguments.has("again"), arguments.span("every") or 0
        skipped = arguments.number("skipped")
        body = arguments.take() if arguments.words else ""
        shard = self.rig_of(queue).shard
        schedule = shard.schedules.find(self.queues[queue], name)
        assert schedule is not None
        expected = schedule.last_due_ms if again else schedule.next_ms
        due = expected + max(0, skipped - (not body)) * every
        firing = Firing(schedule.revision, expected, due, due + every if every else 0, skipped)
        command = Send(self.queues[queue], [body.encode()]) if body else None
        done = shard.fire(self.queues[queue], name, firing, command, self.now)
        return ["nothing: it has changed" if done is None else f"waits: {done.why}" if done.why else "fired"]

    def do_purge(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        removed, done = self.rig_of(name).shard.purge(self.queues[name], self.now)
        return [f"{removed} removed{'' if done else ', more to come'}"]

    def do_close(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        self.rig_of(name).shard.close_queue(self.queues[name], 1, self.now)
        return ["ok"]

    def do_subscribe(self, arguments: Arguments) -> list[str]:
        """`subscribe news jobs dead-letter=morgue filter={...}`; `gone` for a queue that was deleted."""
        topic, name = arguments.take(), arguments.take()
        queue = self.queues.get(name, MISSING_QUEUE)
        dead = self.queues.get(arguments.text("dead-letter"), 0)
        number = self.subscriptions.setdefault((topic, name), max(self.subscriptions.values(), default=0) + 1)
        shards = self.shards
        state = self.rigs[shards[queue]].shard.queues[queue] if queue in shards else None
        subscription = Subscription(
            number,
            self.queues[topic],
            1,
            queue,
            shards.get(queue, 0),
            name=name,
            fifo=state is not None and state.fifo,
            raw=arguments.has("raw"),
            filter=arguments.text("filter"),
            dead_letter_queue=dead,
            dead_letter_shard=shards.get(dead, 0),
        )
        self.rig_of(topic).shard.set_subscription(self.queues[topic], number, subscription, 1, self.now)
        return []

    def do_unsubscribe(self, arguments: Arguments) -> list[str]:
        topic, name = arguments.take(), arguments.take()
        number = self.subscriptions[topic, name]
        self.rig_of(topic).shard.set_subscription(self.queues[topic], number, None, 2, self.now)
        return ["ok"]

    # --- messages ------------------------------------------------------------------------------

    def do_send(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        fields: dict[str, Any] = {
            "group": arguments.text("group"),
            "dedup_id": arguments.text("dedup"),
            "priority": arguments.number("priority"),
            "max_receives": arguments.number("max-receives"),
            "delay_ms": arguments.span("delay"),
            "ttl_ms": arguments.span("ttl"),
            "strict_content": arguments.has("strict-content"),
        }
        invocation = arguments.text("invocation")
        producer, number = arguments.text("producer"), arguments.number("number")
        sends = [
            make_send(arguments.take(), **fields, producer=producer, producer_sequence=number + at)
            for at, _ in enumerate(list(arguments.words))
        ]
        hashed = key_hash(invocation) if invocation else 0
        results = ask.send(self.rig_of(name).shard, self.queues[name], sends, self.now, hashed)
        return [f"{send.body.decode()}: {self.trace.accepted(r)}" for send, r in zip(sends, results, strict=True)]

    def do_receive(self, arguments: Arguments) -> list[Answer]:
        name = arguments.take()
        rig = self.rig_of(name)
        leases = ask.receive(
            rig.shard,
            self.queues[name],
            arguments.number("max", 10),
            arguments.span("visibility"),
            self.now,
            arguments.text("by", "worker"),
            arguments.text("attempt"),
        )

        def show(lease: Lease) -> str:
            body = rig.payload(lease).body.decode()
            self.claims[name, f"{body}/{lease.epoch}"] = Claim(lease.slot, lease.sequence, lease.epoch)
            return self.trace.lease(rig, lease)

        return [partial(show, lease) for lease in leases] or ["nothing"]

    def claim(self, queue: str, receipt: str) -> Claim:
        """`a/1` of the queue that is spoken to, or `other:a/1`."""
        other, _, plain = receipt.rpartition(":")
        return self.claims[other or queue, plain]

    def do_give_back(self, arguments: Arguments) -> list[str]:
        """`give-back jobs a/1`: the answer with this lease never left."""
        name, receipt = arguments.take(), arguments.take()
        self.rig_of(name).shard.give_back(self.queues[name], [self.claim(name, receipt)], self.now)
        return [f"{receipt}: given back"]

    def do_delete(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        strict = arguments.has("strict")
        receipts = [arguments.take() for _ in list(arguments.words)]
        claims = [self.claim(name, receipt) for receipt in receipts]
        results = ask.delete(self.rig_of(name).shard, self.queues[name], claims, self.now, strict)
        return [f"{receipt}: {self.trace.error(r)}" for receipt, r in zip(receipts, results, strict=True)]

    def do_change(self, arguments: Arguments) -> list[str]:
        name, receipt, visibility = arguments.take(), arguments.take(), parse_span(arguments.take())
        changes = [(self.claim(name, receipt), visibility)]
        strict = arguments.has("strict")
        (result,) = ask.change_visibility(self.rig_of(name).shard, self.queues[name], changes, self.now, strict)
        return [f"{receipt}: {self.trace.error(result)}"]

    def do_nack(self, arguments: Arguments) -> list[str]:
        name, receipt = arguments.take(), arguments.take()
        nack = ask.Nack(
            self.claim(name, receipt),
            arguments.span("delay"),
            arguments.text("reason").replace("-", " "),
            arguments.text("class"),
            arguments.has("dead-letter"),
            arguments.has("untried"),
        )
        (result,) = ask.nack(self.rig_of(name).shard, self.queues[name], [nack], self.now)
        return [f"{receipt}: {self.trace.error(result)}"]

    # --- time and owners -------------------------------------------------------------------------

    def do_wait(self, arguments: Arguments) -> list[str]:
        """Time passes; what becomes due on the way is done when it is, as a host's timer would."""
        end = self.now + parse_span(arguments.take())
        while True:
            dues = [due for rig in self.rigs.values() if (due := rig.shard.next_due()) is not None]
            self._set_time(min([*(due for due in dues if due > self.now), end]))
            if self.now == end:
                return [f"it is {moment(end)}"]

    def _set_time(self, now: int) -> None:
        for rig in self.rigs.values():
            rig.now = now
            rig.shard.advance(now)

    def do_restart(self, arguments: Arguments) -> list[str]:
        """Another owner: the follower, one from a snapshot, one that has folded the log."""
        rig = self.rigs[arguments.number("shard")]
        how = arguments.take()
        rig.check()
        successor = {"follower": lambda: rig.follower, "snapshot": rig.loaded, "replay": rig.replayed}[how]()
        if (later := arguments.span("after")) is not None:
            for other in self.rigs.values():
                other.now += later
        rig.restart(successor, arguments.span("grace") or 0)
        return [f"it is {moment(self.now)}"]

    def do_truncate(self, arguments: Arguments) -> list[str]:
        """Drop the whole log up to now: what lives is carried, and a Base says the rest."""
        rig = self.rigs[arguments.number("shard")]
        before = rig.next_frame
        rig.truncate(before)
        rows = [row for number in rig.frames if number >= before for row in rig.frames[number].rows()]
        return [f"{sum(row.type is Type.CARRIED for row in rows)} carried, then a Base"]

    # --- reader groups -------------------------------------------------------------------------

    def _position(self, rig: Rig, queue: int, body: str) -> int:
        """The position of a retained message, by its body."""
        for position, _ in rig.shard.retained_of(queue, self.now).entries():
            if decode(rig.row(position).variable).body.decode() == body:
                return position
        return 1

    def do_reader(self, arguments: Arguments) -> list[str]:
        """`reader jobs audit at=end`; `at=b`: with the message b."""
        name, group = arguments.take(), arguments.take()
        rig, queue = self.rig_of(name), self.queues[name]
        at = arguments.text("at", "start")
        start = Start(at) if at in ("start", "end") else Start("position", self._position(rig, queue, at))
        rig.shard.set_reader(queue, group, self.now, GroupSettings(3, 99, "dead"), start, self.now, False, self.now)
        return ["ok"]

    def do_join(self, arguments: Arguments) -> list[str]:
        name, group, member = arguments.take(), arguments.take(), arguments.take()
        shards = [int(one) for one in arguments.text("shards", "0").split(",")]
        own = self.rig_of(name).shard.join_reader(self.queues[name], group, member, shards, self.now)
        self.members[group, member] = own.epoch
        return [f"{member} has {', '.join(map(str, own.shards)) or 'nothing'}"]

    def do_leave(self, arguments: Arguments) -> list[str]:
        name, group, member = arguments.take(), arguments.take(), arguments.take()
        self.rig_of(name).shard.leave_reader(self.queues[name], group, member, [0], self.now)
        return ["ok"]

    def do_fetch(self, arguments: Arguments) -> list[str]:
        name, group, member = arguments.take(), arguments.take(), arguments.take()
        rig, queue = self.rig_of(name), self.queues[name]
        rig.commit()
        reader = rig.shard.begin_fetch(queue, group, member, self.members[group, member], self.now)
        retained = rig.shard.retained_of(queue, self.now)
        found = retained.positions(retained.index_after(reader.position), 100)
        return [" ".join(decode(rig.row(position).variable).body.decode() for position in found) or "nothing"]

    def do_commit(self, arguments: Arguments) -> list[str]:
        name, group, member = arguments.take(), arguments.take(), arguments.take()
        rig, queue = self.rig_of(name), self.queues[name]
        position = self._position(rig, queue, arguments.take())
        rig.shard.commit_reader(queue, group, member, self.members[group, member], position, self.now)
        return ["ok"]

    def do_fail(self, arguments: Arguments) -> list[str]:
        name, group, member = arguments.take(), arguments.take(), arguments.take()
        rig, queue = self.rig_of(name), self.queues[name]
        position = self._position(rig, queue, arguments.take())
        epoch = self.members[group, member]
        reader = rig.shard.fail_reader(queue, group, member, epoch, position, "no", self.now)
        return ["to be skipped" if reader.is_given_up else f"failed {reader.failures} times"]

    def do_seek(self, arguments: Arguments) -> list[str]:
        name, group = arguments.take(), arguments.take()
        rig, queue = self.rig_of(name), self.queues[name]
        reader = rig.shard.begin_seek(queue, group, self.now)
        start, settings = Start("position", self._position(rig, queue, arguments.take())), reader.settings
        epoch = reader.group_epoch
        rig.shard.set_reader(queue, group, reader.created_ms, settings, start, epoch, False, self.now)
        rig.shard.end_seek(queue, group, epoch, self.now)
        return ["ok"]

    # --- moves -----------------------------------------------------------------------------------

    def do_redrive(self, arguments: Arguments) -> list[str]:
        source = arguments.take()
        to = arguments.text("to")
        destination = (self.queues.get(to) or 99) if to else 0
        job = Job(
            arguments.text("job", "job"),
            self.queues[source],
            destination,
            self.shards.get(destination, 0),
            arguments.number("rate", 10),
            "",
            0,
            0,
            only_dead=arguments.has("only-dead"),
            max_messages=arguments.number("max"),
            ramp_ms=arguments.span("ramp") or 0,
            pause_share=float(arguments.text("share", "1")),
            selection="chosen by the script" if arguments.has("chosen") else "",
            kind="delete" if arguments.has("delete") else "redrive",
        )
        started = self.rig_of(source).shard.start_job(job, self.now)
        return [f"{started.id} {started.state}, {started.to_move} to move"]

    def do_step(self, arguments: Arguments) -> list[str]:
        """The jobs move what their rates allow."""
        answers = []
        for rig in self.rigs.values():
            again = rig.shard.step_jobs(self.now)
            answers.append("no job runs" if again is None else f"again at {moment(again)}")
        return answers

    def _rig_of_job(self, job_id: str) -> Rig:
        return next(rig for rig in self.rigs.values() if job_id in rig.shard.jobs)

    def do_choose(self, arguments: Arguments) -> list[str]:
        """`choose job a b edit=x`: of all that the job has not looked at, these, changed into their body and `x`."""
        job_id = arguments.take()
        rig = self._rig_of_job(job_id)
        job = rig.shard.jobs[job_id]
        edit = arguments.text("edit")
        wanted = [arguments.take() for _ in list(arguments.words)]
        rig.commit()
        views = [view for view in rig.messages(job.source) if job.cursor < view.sequence <= job.through_sequence]
        chosen: list[Chosen] = []
        examined = 0
        for view in views:
            examined += view.sequence > job.seen
            payload = rig.payload(view)
            if payload.body.decode() in wanted:
                changed = payload._replace(body=payload.body + edit.encode(), body_md5=b"")
                chosen.append(Chosen(view.slot, view.sequence, encode_payload(changed) if edit else None, examined))
        rig.shard.choose(job_id, job.cursor, examined, job.through_sequence, chosen, self.now)
        return [f"{len(chosen)} of {len(views)} chosen"]

    def _named(self, name: str, body: str) -> tuple[Rig, MessageView]:
        """A message of a queue, by its body."""
        rig = self.rig_of(name)
        rig.commit()
        (view,) = (view for view in rig.messages(self.queues[name]) if rig.payload(view).body.decode() == body)
        return rig, view

    def _operator(self, body: str, command: Callable[[], None]) -> list[str]:
        try:
            command()
        except BatonError as problem:
            return [f"{body}: {self.trace.error(problem)}"]
        return [f"{body}: {self.trace.error(None)}"]

    def do_operator_delete(self, arguments: Arguments) -> list[str]:
        """`operator-delete jobs a`: an operator names a message."""
        name, body = arguments.take(), arguments.take()
        rig, view = self._named(name, body)
        delete, number = rig.shard.delete_message, self.queues[name]
        return self._operator(body, lambda: delete(number, view.slot, view.sequence, self.now))

    def do_operator_edit(self, arguments: Arguments) -> list[str]:
        name, body, text = arguments.take(), arguments.take(), arguments.text("into")
        rig, view = self._named(name, body)
        edit, number = rig.shard.edit_message, self.queues[name]
        payload = encode_payload(rig.payload(view)._replace(body=text.encode(), body_md5=b""))
        return self._operator(body, lambda: edit(number, view.slot, view.sequence, payload, self.now))

    def do_operator_retry(self, arguments: Arguments) -> list[str]:
        """`operator-retry morgue a to=jobs`: without `to`, the message stays in its queue."""
        name, body, to = arguments.take(), arguments.take(), arguments.text("to")
        rig, view = self._named(name, body)
        retry, number = rig.shard.retry_message, self.queues[name]
        target = Destination(self.queues[to], self.shards.get(self.queues[to], 0)) if to else None
        return self._operator(body, lambda: retry(number, view.slot, view.sequence, target, self.now))

    def do_pause(self, arguments: Arguments) -> list[str]:
        job_id = arguments.take()
        return [f"{job_id} {self._rig_of_job(job_id).shard.pause_job(job_id, 'By request.', self.now).state}"]

    def do_resume(self, arguments: Arguments) -> list[str]:
        job_id = arguments.take()
        return [f"{job_id} {self._rig_of_job(job_id).shard.resume_job(job_id, self.now).state}"]

    def do_cancel(self, arguments: Arguments) -> list[str]:
        job_id = arguments.take()
        return [f"{job_id} {self._rig_of_job(job_id).shard.cancel_job(job_id, self.now).state}"]

    def do_carry_over(self, arguments: Arguments) -> list[str]:
        """`carry-over 0 1`: what shard 0 owes shard 1 is sent there. The answer waits for `settle 0 1`."""
        source, destination = int(arguments.take()), int(arguments.take())
        limit = arguments.number("limit", 100)
        owner, taker = self.rigs[source], self.rigs[destination]
        entries = owner.shard.pending_entries(destination, 0, limit)
        results = taker.shard.arrive([owner.arrival(entry) for entry in entries], self.now)
        self._answers[source, destination] = results
        return [f"entry {number}: {words(Reason(verdict).name)}" for number, verdict in results] or ["nothing is owed"]

    def do_settle(self, arguments: Arguments) -> list[str]:
        source, destination = int(arguments.take()), int(arguments.take())
        self.rigs[source].shard.settle(destination, self._answers[source, destination], self.now)
        return ["ok"]

    # --- looking -----------------------------------------------------------------------------------

    def do_peek(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        rig = self.rig_of(name)
        rig.commit()
        return [self.trace.view(rig, view) for view in rig.messages(self.queues[name])] or ["empty"]

    def do_counters(self, arguments: Arguments) -> list[str]:
        name = arguments.take()
        counters = self.rig_of(name).shard.counters(self.queues[name])._asdict()
        shown = [f"{words(key)} {value}" for key, value in counters.items() if value and key != "bytes"]
        oldest = counters["oldest_sent_ms"]
        shown = [text for text in shown if not text.startswith("oldest visible ms")]
        return [", ".join(shown).replace(f"oldest sent ms {oldest}", f"oldest sent {moment(oldest)}") or "all zero"]

    def do_alarms(self, arguments: Arguments) -> list[str]:
        lines = [alarm.text for rig in self.rigs.values() for alarm in rig.shard.alarms]
        for rig in self.rigs.values():
            rig.shard.alarms.clear()
        return lines or ["none"]
