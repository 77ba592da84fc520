"""Consumers: who polls a queue and who holds its messages; the workers of the whole server."""

from __future__ import annotations

from typing import Literal

from batonq.api.rest.consumer_shapes import Consumers, Holder, Poller, Worker, Workers
from batonq.api.rest.queues import query
from batonq.api.rest.service import Answer, Call
from batonq.node.messages.consumers import ANY_QUEUE, ConsumerRow

POLLING_MS = 30_000  # a consumer that polled so recently is polling, even if no receive waits now
IDLE_MS = 120_000  # one that was not seen for longer is gone
SEVERAL = "(several queues)"  # a receive from several queues that has not got a message yet


async def list_consumers(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    rows = await call.broker.consumers.listed(queue.number)
    held = await call.broker.holders(queue)
    return Answer(
        200,
        Consumers(
            queue=queue.name,
            pollers=[
                Poller(
                    holder=row.name,
                    address=row.address,
                    agent=row.agent,
                    waiting=row.waiting,
                    last_poll_at_ms=row.polled_ms,
                    received_per_minute=row.received,
                    empty_per_minute=row.empty,
                )
                for row in rows
            ],
            holders=[
                Holder(
                    holder=one.holder,
                    in_flight=one.in_flight,
                    oldest_lease_at_ms=one.oldest_ms,
                    next_deadline_at_ms=one.deadline_ms,
                )
                for one in held
            ],
        ),
    )


async def list_workers(call: Call) -> Answer:
    call.require_operator(write=False)
    query(call, ())
    now_ms = call.broker.now_ms()
    holdings = await call.broker.holders()
    rows = await call.broker.consumers.listed()
    by_name: dict[str, list[ConsumerRow]] = {}  # consumers of several accounts can have the same name
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    held: dict[tuple[str, str], int] = {}
    queues_of: dict[tuple[str, str], set[int]] = {}
    for one in holdings:
        same_name = by_name.setdefault(one.holder, [])
        if not same_name:  # a holder that no node has seen since it was started
            same_name.append(ConsumerRow(one.holder, "", "", [], 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0))
        row = next((row for row in same_name if one.queue in row.queues), same_name[0])
        key = row.account, row.name
        held[key] = held.get(key, 0) + one.in_flight
        queues_of.setdefault(key, set()).add(one.queue)
    every = (row for name in sorted(by_name) for row in by_name[name])
    return Answer(200, Workers([_worker(call, row, held, queues_of, now_ms) for row in every]))


def _worker(
    call: Call,
    row: ConsumerRow,
    held: dict[tuple[str, str], int],
    queues_of: dict[tuple[str, str], set[int]],
    now_ms: int,
) -> Worker:
    key = row.account, row.name
    numbers = {*row.queues, *queues_of.get(key, ())}
    found = [call.broker.queue_by_number(number) for number in numbers - {ANY_QUEUE}]
    names = sorted(queue.name for queue in found if queue is not None)
    in_flight = held.get(key, 0)
    return Worker(
        name=row.name,
        queues=names if names or ANY_QUEUE not in numbers else [SEVERAL],
        address=row.address,
        agent=row.agent,
        state=_state(row, in_flight, now_ms),
        waiting=row.waiting,
        in_flight=in_flight,
        last_seen_at_ms=row.seen_ms,
        last_heartbeat_at_ms=row.heartbeat_ms,
        received_per_minute=row.received,
        acked_per_minute=row.acked,
        failed_per_minute=row.failed,
        node=row.node,
    )


def _state(row: ConsumerRow, in_flight: int, now_ms: int) -> Literal["polling", "holding", "idle", "gone"]:
    if row.waiting or now_ms - row.polled_ms <= POLLING_MS:
        return "polling"
    if in_flight:
        return "holding"
    return "idle" if now_ms - row.seen_ms <= IDLE_MS else "gone"
