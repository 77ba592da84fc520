"""`OrderedGuard`: for each key the handler sees messages 1, 2, 3 … in this order, each once, one at a time.

For consumers of queues without ordering, and as a check on those with. The producer sets the number (a version of the
row, an event's number); the guard stores the last one that was processed.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from typing import Any

from batonq.errors import InvalidInput
from batonq.idempotency.decorator import KeyOf, finished, new_owner
from batonq.idempotency.failures import Busy, ClaimLost, OutOfOrder
from batonq.idempotency.store import Place, Store, Turn, checked_key


class OrderedGuard:
    """Decorates a handler: `@OrderedGuard(store, key=…, sequence=…)`.

    The next message (last + 1) is processed, and its number is then the last one. A message at or before the last is a
    duplicate: the handler does not run, and None is returned. A message after a gap raises `OutOfOrder`, and one whose
    key is being processed raises `Busy`; both carry the delay until the next delivery. A crash between effect and mark
    repeats that one message: combine it with `@idempotent` (inside), or use `next_in_order` in the effect's
    transaction.
    """

    def __init__(
        self,
        store: Store,
        *,
        key: KeyOf,
        sequence: Callable[..., int],
        first: int = 1,
        lease: float = 60.0,
        renew_for: float = 3600.0,
        retry_after: float = 1.0,
        scope: str | None = None,
    ) -> None:
        if lease <= 0 or retry_after < 0:
            raise InvalidInput("lease must be greater than 0 seconds, and retry_after must not be negative.")
        self._store = store
        self._key = key
        self._sequence = sequence
        self._first = first
        self._lease = lease
        self._renew_for = renew_for
        self._retry_after = retry_after
        self._scope = scope

    def __call__(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        scope = handler.__qualname__ if self._scope is None else self._scope
        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                key, number, owner = self._names(scope, args, kwargs)
                turn = await self._store.call(self._store.begin_turn, key, number, owner, self._lease, self._first)
                if not self._is_next(key, number, turn):
                    return None
                with self._store.turn_renewals.keep(key, owner, self._lease, self._renew_for):
                    try:
                        result = await handler(*args, **kwargs)
                    except BaseException:
                        giving_up = self._store.call(self._store.give_up_turn, key, owner)
                        await finished(asyncio.ensure_future(giving_up))
                        raise
                marking = asyncio.ensure_future(self._store.call(self._store.end_turn, key, number, owner))
                try:
                    await asyncio.shield(marking)
                except asyncio.CancelledError:
                    await finished(marking)
                    raise
                self._ended(key, number, marking.result())
                return result

            return run_async

        @functools.wraps(handler)
        def run(*args: Any, **kwargs: Any) -> Any:
            key, number, owner = self._names(scope, args, kwargs)
            if not self._is_next(key, number, self._store.begin_turn(key, number, owner, self._lease, self._first)):
                return None
            with self._store.turn_renewals.keep(key, owner, self._lease, self._renew_for):
                try:
                    result = handler(*args, **kwargs)
                except BaseException:
                    self._store.give_up_turn(key, owner)
                    raise
            self._ended(key, number, self._store.end_turn(key, number, owner))
            return result

        return run

    def _names(self, scope: str, args: Any, kwargs: Any) -> tuple[str, int, str]:
        number = self._sequence(*args, **kwargs)
        if not isinstance(number, int):
            raise InvalidInput(f"sequence=… must return the message's number, an integer, not {number!r}.")
        return checked_key(f"{scope}:{checked_key(self._key(*args, **kwargs))}"), number, new_owner()

    def _is_next(self, key: str, number: int, turn: Turn) -> bool:
        if turn.place is Place.GAP:
            raise OutOfOrder(
                self._retry_after, f"message {number} of {key!r} arrived while the last processed one is {turn.last}"
            )
        if turn.place is Place.BUSY:
            raise Busy(min(self._retry_after, turn.retry_after), f"another consumer is processing {key!r}")
        return turn.place is Place.NEXT

    def _ended(self, key: str, number: int, held: bool) -> None:
        if not held:
            raise ClaimLost(f"The turn of message {number} of {key!r} was taken over while the handler was running.")
