"""`@idempotent` and `OrderedGuard` around handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from queue import Queue

import pytest

from batonq.errors import BatonError, InvalidInput
from batonq.idempotency import Busy, ClaimLost, ClaimState, MemoryStore, OrderedGuard, OutOfOrder, Store, idempotent
from batonq.idempotency.renewals import Renewals
from tests.support.doubles import double

LEASE = 600.0
SHORT_LEASE = 3.0  # a process that is not given a processor for two seconds loses it, as it should
PATIENCE_S = 300.0


@dataclass
class Message:
    id: str
    body: int = 0


@pytest.fixture
def memory() -> Iterator[MemoryStore]:
    with closing(MemoryStore()) as store:
        yield store


def test_a_handler_runs_once_a_key(store: Store) -> None:
    done: list[str] = []

    @idempotent(store)
    def handle(message: Message) -> str:
        done.append(message.id)
        return "sent"

    assert handle(Message("a")) == "sent"
    assert handle(Message("a")) is None
    assert handle(Message("b")) == "sent"
    assert done == ["a", "b"]


def test_a_coroutine_runs_once_a_key(store: Store) -> None:
    done: list[str] = []

    @idempotent(store)
    async def handle(message: Message) -> str:
        done.append(message.id)
        return "sent"

    async def main() -> list[str | None]:
        return [await handle(Message(id)) for id in ("a", "a", "b")]

    assert asyncio.run(main()) == ["sent", None, "sent"]
    assert done == ["a", "b"]


def test_a_result_may_be_kept_and_is_returned_again(store: Store) -> None:
    @idempotent(store, keep_result=True)
    def handle(message: Message) -> dict[str, int]:
        return {"total": message.body}

    assert handle(Message("a", 7)) == {"total": 7}
    assert handle(Message("a", 8)) == {"total": 7}


def test_a_result_that_cannot_be_kept_is_told_but_the_work_is_not_repeated(memory: MemoryStore) -> None:
    @idempotent(memory, keep_result=True)
    def handle(message: Message) -> object:
        return object()

    with pytest.raises(InvalidInput, match="The work is done"):
        handle(Message("a"))
    assert handle(Message("a")) is None


def test_a_failure_gives_the_claim_back(store: Store) -> None:
    tries: list[int] = []

    @idempotent(store)
    def handle(message: Message) -> str:
        tries.append(1)
        if len(tries) == 1:
            raise OSError("the mail server is away")
        return "sent"

    with pytest.raises(OSError, match="away"):
        handle(Message("a"))
    assert handle(Message("a")) == "sent"


def test_a_cancelled_coroutine_gives_the_claim_back(store: Store) -> None:
    async def main() -> str | None:
        started = asyncio.Event()

        @idempotent(store)
        async def handle(message: Message) -> str:
            if not started.is_set():
                started.set()
                await asyncio.Event().wait()
            return "sent"

        first = asyncio.ensure_future(handle(Message("a")))
        await started.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await handle(Message("a"))

    assert asyncio.run(main()) == "sent"


def test_a_coroutine_cancelled_while_it_claims_leaves_no_claim(memory: MemoryStore) -> None:
    @double("claiming", "go_on")
    class Slow(MemoryStore):
        """A store whose claim is under way, on a thread, when the caller goes."""

        claiming = threading.Event()
        go_on = threading.Event()

        def claim(self, key: str, owner: str, lease: float):  # type: ignore[no-untyped-def]
            self.claiming.set()
            assert self.go_on.wait(PATIENCE_S)
            return super().claim(key, owner, lease)

        call = Store.call

    async def main() -> str | None:
        with closing(Slow()) as store:

            @idempotent(store)
            async def handle(message: Message) -> str:
                return "sent"

            first = asyncio.ensure_future(handle(Message("a")))
            await asyncio.to_thread(store.claiming.wait)
            first.cancel()
            store.go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await first
            return await handle(Message("a"))

    assert asyncio.run(main()) == "sent"


class Holder:
    """A handler at work on a thread, under a claim of this lease, until `finish` is set."""

    def __init__(self, store: Store, lease: float) -> None:
        working = threading.Event()
        self.finish = threading.Event()
        self.extended: Queue[bool] = Queue()  # whether it was, each time
        original = store.extend

        def extend(key: str, owner: str, lease: float) -> bool:
            held = original(key, owner, lease)
            self.extended.put(held)
            return held

        store.renewals._extend = extend

        @idempotent(store, lease=lease, key=lambda message: message.id, scope="mail")
        def handle(message: Message) -> str:
            working.set()
            assert self.finish.wait(PATIENCE_S)
            return "sent"

        self.handle = handle
        self.thread = threading.Thread(target=handle, args=(Message("a"),))
        self.thread.start()
        assert working.wait(PATIENCE_S)

    def check_busy(self, lease: float) -> None:
        """Once more after it was extended."""
        assert self.extended.get(timeout=PATIENCE_S)
        with pytest.raises(Busy) as busy:
            self.handle(Message("a"))
        assert 0 < busy.value.delay <= lease + 0.1
        assert "mail:a" in busy.value.reason
        assert busy.value.retryable

    def end(self) -> None:
        self.finish.set()
        self.thread.join()
        assert self.handle(Message("a")) is None


def test_while_a_live_holder_works_another_delivery_is_told_busy(store: Store) -> None:
    holder = Holder(store, LEASE)
    for _ in range(4):
        with store.renewals._changed:
            for held in store.renewals._held:
                held.due = 0.0  # as when a third of the lease has passed
            store.renewals._changed.notify()
        holder.check_busy(LEASE)
    holder.end()


def test_a_lease_that_is_shorter_than_the_work_is_extended(memory: MemoryStore) -> None:
    holder = Holder(memory, SHORT_LEASE)
    for _ in range(4):
        holder.check_busy(SHORT_LEASE)
    holder.end()


def test_a_hung_holder_is_not_extended_for_ever() -> None:
    extended: list[str] = []
    often = threading.Event()

    def extend(key: str, owner: str, lease: float) -> bool:
        extended.append(key)
        if len(extended) == 5:
            often.set()
        return True

    renewals = Renewals(extend)
    with renewals.keep("hung", "a", 0.01, 0.0), renewals.keep("lives", "a", 0.01, 60.0):
        assert often.wait(PATIENCE_S)
    renewals.close()
    assert set(extended) == {"lives"}


def test_a_holder_whose_claim_was_taken_over_is_told(store: Store) -> None:
    @idempotent(store, scope="s")
    def handle(message: Message) -> str:
        store.forget("s:a")
        assert store.claim("s:a", "another", 60).state is ClaimState.TAKEN
        return "sent"

    with pytest.raises(ClaimLost, match="taken over"):
        handle(Message("a"))
    assert store.complete("s:a", "another", 60, None)


def test_handlers_that_share_a_store_do_not_share_keys(memory: MemoryStore) -> None:
    @idempotent(memory)
    def charge(message: Message) -> str:
        return "charged"

    @idempotent(memory)
    def mail(message: Message) -> str:
        return "mailed"

    assert (charge(Message("a")), mail(Message("a"))) == ("charged", "mailed")


def test_a_message_without_an_id_needs_a_key(memory: MemoryStore) -> None:
    @idempotent(memory)
    def handle(message: int) -> None:
        raise AssertionError

    with pytest.raises(InvalidInput, match="Set key="):
        handle(7)
    with pytest.raises(InvalidInput, match="ttl and lease"):
        idempotent(memory, lease=0)


def test_busy_is_what_a_worker_expects() -> None:
    busy = Busy(2.5, "held")
    assert (busy.delay, busy.reason, isinstance(busy, BatonError)) == (2.5, "held", True)
    assert isinstance(OutOfOrder(1), Busy)


def test_messages_of_a_key_are_handled_in_order_and_once(store: Store) -> None:
    seen: list[int] = []

    @OrderedGuard(store, key=lambda message: message.id, sequence=lambda message: message.body, retry_after=0.5)
    def handle(message: Message) -> int:
        seen.append(message.body)
        return message.body

    with pytest.raises(OutOfOrder) as early:
        handle(Message("a", 2))
    assert early.value.delay == 0.5
    assert [handle(Message("a", number)) for number in (1, 1, 2, 1, 3)] == [1, None, 2, None, 3]
    assert handle(Message("b", 1)) == 1
    assert seen == [1, 2, 3, 1]


def test_an_ordered_coroutine(store: Store) -> None:
    async def main() -> None:
        entered, finish = asyncio.Event(), asyncio.Event()
        fail = [True]

        @OrderedGuard(store, key=lambda message: message.id, sequence=lambda message: message.body)
        async def handle(message: Message) -> int:
            if fail[0]:
                raise OSError("away")
            entered.set()
            await finish.wait()
            return message.body

        with pytest.raises(OSError, match="away"):
            await handle(Message("a", 1))
        fail[0] = False
        first = asyncio.ensure_future(handle(Message("a", 1)))
        await entered.wait()
        with pytest.raises(Busy):
            await handle(Message("a", 1))
        finish.set()
        assert await first == 1
        assert await handle(Message("a", 2)) == 2
        assert await handle(Message("a", 2)) is None

    asyncio.run(main())


def test_a_number_that_is_none_is_refused(memory: MemoryStore) -> None:
    guarded = OrderedGuard(memory, key=lambda message: message.id, sequence=lambda message: "7")(print)  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match="an integer"):
        guarded(Message("a"))
