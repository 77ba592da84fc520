"""A broker's eventful day, made by real requests: what the tables and the audit are tried on.

Acks, nacks with error classes, leases and messages that run out, dead letters, redrive, delays, priorities, FIFO
groups, deduplication, extensions, purge, a queue that is deleted, late deletes, stale ones, a restart with leases held.

And through the SQS door what the other one refuses: deletes after the lease ran out, receives that are given again by
their attempt id. Leases of no length, messages given back untried, messages that are dead where they are, dead letters
within a shard and across shards, of FIFO queues too, dead letters that were changed on their way back, messages that
run out into the dead letters, keys that count as long as their message lives.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from batonq.client.models import Nack, Outgoing, RedriveEdit
from batonq.client.queue_settings import Deduplication
from batonq.errors import LeaseLost, MessageGone
from batonq.sync import Baton, Message, Queue
from tests.support.server import ACCOUNT, TestServer
from tests.system.process import Client

ERRORS = (("Timeout", "upstream took too long"), ("ValueError", "no such order"), ("", "gave up"))


def make(
    directory: str, *, rounds: int = 6, seed: int = 1, shards: int = 2, truncates: bool = False, **settings: Any
) -> None:
    """Fill `directory` with the logs of such a day; the server is stopped when this returns.

    `truncates`: now and then what no message needs is dropped, as far as the settings let it.
    """
    chance = random.Random(seed)
    for part in range(2):  # the second is after a restart, with leases still held
        with TestServer(directory, shards=shards, **settings) as server, Baton(server.url) as baton:
            day = _Day(server, baton, chance, first=part * rounds)
            for number in range(rounds):
                day.round(part * rounds + number)
                if truncates:
                    server.run(server.node.maintenance.step)
            if part:
                day.end()
            day.close()


class _Day:
    def __init__(self, server: TestServer, baton: Baton, chance: random.Random, *, first: int) -> None:
        self.server, self.baton, self.chance = server, baton, chance
        self.dead = baton.create_queue("orders-dead")
        self.orders = baton.create_queue(
            "orders", max_receives=3, dead_letter_queue="orders-dead", visibility=30.0, dead_letter_on="failure"
        )
        self.mail = baton.create_queue("mail", max_receives=4, visibility=20.0, strict_receipts=False)
        self.ledger = baton.create_queue("ledger", fifo=True, visibility=30.0)
        self.brief = baton.create_queue("brief", retention=120.0)
        self.spare = baton.create_queue(f"spare-{first}")
        self.frail = baton.create_queue("frail", max_receives=1, visibility=10.0)
        self.tickets_dead = baton.create_queue("tickets-dead", fifo=True)
        self.tickets = baton.create_queue(
            "tickets", fifo=True, max_receives=2, dead_letter_queue="tickets-dead", visibility=15.0
        )
        self.offers = baton.create_queue(
            "offers", retention=90.0, dead_letter_queue="orders-dead", max_receives=9, expiry_to_dead_letter=True
        )
        self.once = baton.create_queue("once", deduplication=Deduplication(window_seconds=5, scope="lives"))
        self.sqs = Client(server.url)

    def close(self) -> None:
        self.sqs.close()

    def round(self, number: int) -> None:
        """One minute and more of it."""
        self._send(number)
        self._consume(self.orders, 30)
        self._consume(self.mail, 20)
        self._consume_in_order()
        self.server.advance(self.chance.choice((5, 31, 61)))
        self._consume(self.orders, 20)
        self._odd_ends(number)
        if number % 3 == 2:
            self.orders_again()
        self.server.advance(7)

    def _send(self, number: int) -> None:
        chance = self.chance
        self.orders.send_many(
            [
                Outgoing(
                    {"order": number * 100 + index, "lines": list(range(index % 4))},
                    priority=chance.choice((0, 0, 5)),
                    attributes={"kind": chance.choice(("web", "shop"))},
                    delay=chance.choice((None, None, 3.0, 40.0)),
                    dedup_key=f"order-{number}-{index % 30}",
                )
                for index in range(40)
            ]
        )
        self.mail.send_many([Outgoing(f"letter {number}.{index}" + "x" * chance.randrange(200)) for index in range(30)])
        self.ledger.send_many([Outgoing({"entry": index}, group=f"account-{index % 5}") for index in range(30)])
        self.brief.send_many([Outgoing({"flash": index}) for index in range(5)])
        self.spare.send_many([Outgoing({"spare": index}) for index in range(3)])

    def _consume(self, queue: Queue, count: int) -> None:
        held = queue.receive(count, wait=0, consumer=self.chance.choice(("ann", "ben")))
        done, back, late = [], [], []
        for message in held:
            fate = self.chance.random()
            if fate < 0.45:
                done.append(message.receipt)
            elif fate < 0.7:
                name, text = self.chance.choice(ERRORS)
                back.append(Nack(message.receipt, delay=self.chance.choice((0.0, 10.0)), error_class=name, reason=text))
            elif fate < 0.75:
                back.append(Nack(message.receipt, reason="poison", error_class="Poison", dead_letter=True))
            elif fate < 0.85:
                message.extend(90.0)
            elif fate < 0.9:
                late.append(message)
        queue.ack_many(done)
        queue.nack_many(back)
        for message in late[:1]:
            self._late(message)

    def _late(self, message: Message) -> None:
        """A delete after the lease ran out: by the last holder, or by one that somebody else came after."""
        self.server.advance(35)
        try:
            message.ack()
        except (LeaseLost, MessageGone):
            pass

    def _odd_ends(self, number: int) -> None:
        """What happens seldom, a little of each."""
        self.frail.send_many([Outgoing(f"glass {number}.{index}") for index in range(3)])
        for message in self.frail.receive(2, wait=0):
            message.nack(error_class="Broken")
        self.frail.receive(2, wait=0)  # finds that they have no receive left: dead where they are
        self.offers.send_many([Outgoing({"offer": index}) for index in range(2)])
        self.once.send_many([Outgoing("a", dedup_key=f"key-{number % 2}"), Outgoing("b", dedup_key=f"key-{number}")])
        for message in self.once.receive(1, wait=0):
            message.ack() if number % 2 else message.nack(untried=True)
        self.mail.receive(2, wait=0, visibility=0.0)
        for message in self.mail.receive(2, wait=0):
            message.nack(untried=True, delay=self.chance.choice((0.0, 4.0)))
        self._tickets(number)
        self._late_by_sqs()
        self._operator()

    def _tickets(self, number: int) -> None:
        """FIFO groups whose batches come back in parts, and die."""
        self.tickets.send_many([Outgoing(f"ticket {number}.{index}", group=f"row-{index % 2}") for index in range(6)])
        attempt = f"attempt-{number}"
        held = self.tickets.receive(5, wait=0, attempt_id=attempt)
        again = self.tickets.receive(5, wait=0, attempt_id=attempt)
        assert [message.id for message in again] == [message.id for message in held]
        for message in again:
            if self.chance.random() < 0.4:
                message.ack()
            elif self.chance.random() < 0.5:
                message.nack(error_class="Torn")
        for message in self.tickets_dead.receive(2, wait=0):
            message.ack()

    def _operator(self) -> None:
        """An operator deletes, edits and retries messages that nobody holds, delayed ones too."""
        self.mail.send("to be retried", delay=600.0)
        free = [message for message in self.mail.peek(limit=100) if message.state in ("VISIBLE", "DELAYED")]
        *others, retried = [f"/v1/queues/mail/messages/{message.current_id}" for message in free[:2] + free[-1:]]
        for path in others[:1]:
            self.baton._calls.request("DELETE", path)
        for path in others[1:]:
            self.baton._calls.request("PATCH", path, {"setAttributes": {"edited": "yes"}})
        self.baton._calls.request("POST", f"{retried}:retry")
        for letter in self.dead.peek(limit=1):
            if letter.state == "VISIBLE":
                self.baton._calls.request("POST", f"/v1/queues/{self.dead.name}/messages/{letter.current_id}:retry")

    def _late_by_sqs(self) -> None:
        """On a queue without strict receipts the last holder may delete after its lease ran out."""
        url = f"{self.server.url}/{ACCOUNT}/mail"
        got = self.sqs.call("ReceiveMessage", QueueUrl=url, MaxNumberOfMessages=3, VisibilityTimeout=5)
        held = [message["ReceiptHandle"] for message in got.get("Messages", [])]
        for receipt in held[1:2]:
            self.sqs.call("ChangeMessageVisibility", QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        self.server.advance(6)
        for receipt in held[:1]:
            self.sqs.call("DeleteMessage", QueueUrl=url, ReceiptHandle=receipt)

    def _consume_in_order(self) -> None:
        for _ in range(3):
            held = self.ledger.receive(10, wait=0)
            for message in held:
                if self.chance.random() < 0.8:
                    message.ack()
                else:
                    message.nack(delay=2.0, error_class="Locked")

    def orders_again(self) -> None:
        self.dead.redrive(rate=1000, edit=RedriveEdit(set_attributes={"again": "yes"}), max_messages=5).wait()
        self.dead.redrive(rate=1000).wait()
        self.tickets_dead.redrive(rate=1000).wait()

    def end(self) -> None:
        self.server.advance(200)  # the brief ones run out
        self.mail.purge()
        self.spare.delete()
        self._consume(self.orders, 10)
        self.server.advance(120)  # every lease has run out, so that nothing more happens while a served history is read
        self.orders.send_many([Outgoing({"order": "last"})])
        assert self.orders.receive(1, wait=0, visibility=36_000.0)  # one is in flight at the end, whatever chance did


def kinds(events: Sequence[dict[str, object]]) -> set[str]:
    return {f"{event['event']}/{event['reason']}" if event["reason"] else str(event["event"]) for event in events}
