"""The scenario of `baton demo`: which queues it has, what is sent to them, and how their workers handle it.

Nothing here sends or waits. All choices come from a `random.Random`, so that a seed gives the same scenario.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from batonq.client import Exponential, Outgoing

TAG = "baton-demo"  # on every queue that the demo creates, and nothing without it is deleted
PREFIX = "demo-"
MESSAGE_TTL_S = 6 * 3600.0
FIRST_NAMES = ("ada", "grace", "alan", "edsger", "barbara", "donald", "frances", "tony")
GOODS = ("kettle", "lamp", "desk", "chair", "notebook", "clock", "mug", "rug")
REPORTS = ("daily-sales", "stock-levels", "late-deliveries", "returns")
HEARTBEAT_S = 10.0


class Failure(NamedTuple):
    """Why a worker could not handle a message. A permanent failure is dead-lettered at once."""

    error_class: str
    reason: str
    permanent: bool = False


class Part(NamedTuple):
    """One queue of the scenario, with its producer and its workers."""

    name: str
    about: str
    settings: dict[str, Any]
    share: float  # of all messages that are sent
    compose: Callable[[Random, int], Outgoing]
    handle: Callable[[Random, Any, int], Failure | None]  # (chance, body, receive count)
    workers: int = 1
    seconds: tuple[float, float] = (0.02, 0.1)  # how long a worker takes for a message
    fifo: bool = False

    @property
    def queue(self) -> str:
        return PREFIX + self.name

    @property
    def dead_letter_queue(self) -> str:
        name: str = self.settings.get("dead_letter_queue", "")
        return name


def _done(chance: Random, body: Any, receive_count: int) -> Failure | None:
    return None


# --- orders: busy, two priorities, a failing dependency -------------------------------------------


def _order(chance: Random, number: int) -> Outgoing:
    express = chance.random() < 0.1
    body = {
        "order": 10_000 + number,
        "customer": chance.choice(FIRST_NAMES),
        "express": express,
        "lines": [
            {"item": chance.choice(GOODS), "quantity": chance.randint(1, 5), "price": f"{chance.randint(5, 90)}.00"}
            for _ in range(chance.randint(1, 3))
        ],
    }
    attributes = {"source": chance.choice(("web", "app", "shop")), "version": 2}
    return Outgoing(body, ttl=MESSAGE_TTL_S, attributes=attributes, priority="high" if express else "normal")


def _handle_order(chance: Random, body: Any, receive_count: int) -> Failure | None:
    if chance.random() < 0.04:
        return Failure("TimeoutError", "the stock service did not answer within 2 s")
    return None


# --- emails: addresses that fail for good, and one poison message in fifty -------------------------


def _email(chance: Random, number: int) -> Outgoing:
    name = chance.choice(FIRST_NAMES)
    body: dict[str, Any] = {"template": "order-shipped", "to": f"{name}@mail.example", "order": 10_000 + number}
    if number % 50 == 7:
        body = {"template": "order-shipped", "to": None, "order": 10_000 + number}  # the poison message
    elif chance.random() < 0.08:
        body["to"] = f"{name}@closed.example"
    return Outgoing(body, ttl=MESSAGE_TTL_S, attributes={"campaign": chance.choice(("spring", "none"))})


def _handle_email(chance: Random, body: Any, receive_count: int) -> Failure | None:
    to = body.get("to")
    if to is None:
        return Failure("TypeError", "expected a string for 'to', got NoneType")
    if to.endswith("@closed.example"):
        return Failure("SMTPRecipientsRefused", "550 5.1.1 mailbox does not exist", permanent=True)
    if chance.random() < 0.03:
        return Failure("ConnectionResetError", "the mail server closed the connection")
    return None


# --- thumbnails: one slow worker, so a backlog grows ------------------------------------------------


def _thumbnail(chance: Random, number: int) -> Outgoing:
    huge = chance.random() < 0.15
    width = 60_000 if huge else chance.choice((640, 1_280, 4_096))
    body = {"image": f"uploads/2026/{number:06d}.jpg", "width": width, "height": width * 3 // 4}
    return Outgoing(body, ttl=MESSAGE_TTL_S, attributes={"format": "webp"})


def _handle_thumbnail(chance: Random, body: Any, receive_count: int) -> Failure | None:
    if body["width"] > 50_000:
        return Failure("DecompressionBombError", f"the image is {body['width']} pixels wide; at most 50000 are allowed")
    return None


# --- payments: FIFO, one group per customer ---------------------------------------------------------


def _payment(chance: Random, number: int) -> Outgoing:
    customer = chance.choice(FIRST_NAMES)
    body = {"payment": f"pay-{number:05d}", "customer": customer, "amount": f"{chance.randint(5, 400)}.00"}
    return Outgoing(body, group=customer, dedup_key=f"pay-{number:05d}", ttl=MESSAGE_TTL_S)


def _handle_payment(chance: Random, body: Any, receive_count: int) -> Failure | None:
    if float(body["amount"]) > 380:
        return Failure("CardDeclined", "the bank declined the card: limit exceeded", permanent=True)
    if chance.random() < 0.02:
        return Failure("GatewayTimeout", "no answer from the payment gateway after 5 s")
    return None


# --- reports: delayed, and long work with heartbeats ------------------------------------------------


def _report(chance: Random, number: int) -> Outgoing:
    body = {"report": chance.choice(REPORTS), "day": f"2026-11-{1 + number % 28:02d}"}
    return Outgoing(body, delay=float(chance.randint(15, 120)), ttl=MESSAGE_TTL_S, priority="low")


# --- audit: nobody consumes it ----------------------------------------------------------------------


def _audit(chance: Random, number: int) -> Outgoing:
    body = {"event": chance.choice(("login", "logout", "export")), "user": chance.choice(FIRST_NAMES), "number": number}
    return Outgoing(body, ttl=MESSAGE_TTL_S)


_RETRY = Exponential(base_seconds=2.0, max_seconds=30.0)

PARTS = (
    Part(
        "orders",
        "two workers, express orders first, sometimes a timeout",
        {"dead_letter_queue": f"{PREFIX}orders-dead", "max_receives": 3, "retry": _RETRY, "sla": 60.0},
        0.38,
        _order,
        _handle_order,
        workers=2,
        seconds=(0.02, 0.12),
    ),
    Part(
        "emails",
        "some addresses are refused, and every fiftieth message is malformed",
        {"dead_letter_queue": f"{PREFIX}emails-dead", "max_receives": 3, "retry": _RETRY, "alarm_severity": "high"},
        0.3,
        _email,
        _handle_email,
        workers=2,
    ),
    Part(
        "thumbnails",
        "one slow worker, so that messages wait",
        {"dead_letter_queue": f"{PREFIX}thumbnails-dead", "max_receives": 2, "retry": _RETRY, "visibility": 60.0},
        0.12,
        _thumbnail,
        _handle_thumbnail,
        seconds=(0.8, 1.6),
    ),
    Part(
        "payments.fifo",
        "in order for each customer",
        {"dead_letter_queue": f"{PREFIX}payments-dead.fifo", "max_receives": 3, "retry": _RETRY},
        0.12,
        _payment,
        _handle_payment,
        seconds=(0.05, 0.2),
        fifo=True,
    ),
    Part(
        "reports", "delayed, with long work and heartbeats", {"visibility": 30.0}, 0.03, _report, _done, seconds=(8, 25)
    ),
    Part("audit", "no consumer", {}, 0.05, _audit, _done, workers=0),
)
