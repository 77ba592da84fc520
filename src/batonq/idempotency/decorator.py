"""`@idempotent(store)`: the handler runs once per key, even if its message is delivered again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import secrets
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar, overload

import msgspec

from batonq.errors import InvalidInput
from batonq.idempotency.failures import Busy, ClaimLost
from batonq.idempotency.store import RESULT_BYTES_MAX, Claim, ClaimState, Store, checked_key

P = ParamSpec("P")
T = TypeVar("T")
KeyOf = Callable[..., str]

DAY_S = 86_400.0
_AFTER_LEASE_S = 0.05  # so that a busy message is delivered again after the lease has ended, not just before
_log = logging.getLogger("batonq.idempotency")


def id_of(*args: Any, **kwargs: Any) -> str:
    """The default key of a handler: the id of the message, which is its first argument."""
    message = args[0] if args else next(iter(kwargs.values()), None)
    id = getattr(message, "id", None)
    if not isinstance(id, str):
        raise InvalidInput(
            f"{type(message).__name__} has no id to use as the key. Set key=… to a function of the arguments."
        )
    return id


class idempotent:  # noqa: N801
    """Decorates a handler, a coroutine function or a plain one.

    Before the handler runs, its key is claimed with a lease, which is extended while this process lives, for at most
    `renew_for` seconds. Afterwards the key is marked as done for `ttl` seconds. A delivery that finds the key done
    returns at once (None, or with `keep_result` the result of the first run); one that finds it claimed raises `Busy`.
    If the handler raises, the claim is released. If the process dies, the claim stays until its lease expires; then the
    next delivery does the work.

    `key` is called with the handler's arguments (default: the `id` of the first one); `scope`, by default the handler's
    name, separates several handlers that share a store.
    """

    def __init__(
        self,
        store: Store,
        *,
        key: KeyOf | None = None,
        ttl: float = 7 * DAY_S,
        lease: float = 60.0,
        renew_for: float = 3600.0,
        keep_result: bool = False,
        scope: str | None = None,
    ) -> None:
        if ttl <= 0 or lease <= 0 or renew_for < 0:
            raise InvalidInput("ttl and lease must be greater than 0 seconds, and renew_for must not be negative.")
        self._store = store
        self._key = key or id_of
        self._ttl = ttl
        self._lease = lease
        self._renew_for = renew_for
        self._keep_result = keep_result
        self._scope = scope

    @overload
    def __call__(self, handler: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T | None]]: ...
    @overload
    def __call__(self, handler: Callable[P, T]) -> Callable[P, T | None]: ...
    def __call__(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        scope = handler.__qualname__ if self._scope is None else self._scope
        if inspect.iscoroutinefunction(handler):

            @functools.wraps(handler)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                return await self._run_async(handler, scope, args, kwargs)

            return run_async

        @functools.wraps(handler)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(handler, scope, args, kwargs)

        return run

    def _run(self, handler: Callable[..., Any], scope: str, args: Any, kwargs: Any) -> Any:
        key = checked_key(f"{scope}:{checked_key(self._key(*args, **kwargs))}")
        owner = new_owner()
        claim = self._store.claim(key, owner, self._lease)
        if claim.state is not ClaimState.TAKEN:
            return self._not_taken(key, claim)
        with self._store.renewals.keep(key, owner, self._lease, self._renew_for):
            try:
                result = handler(*args, **kwargs)
            except BaseException:
                self._store.release(key, owner)
                raise
        kept, problem = self._encoded(result)
        self._ended(key, self._store.complete(key, owner, self._ttl, kept), problem)
        return result

    async def _run_async(self, handler: Callable[..., Any], scope: str, args: Any, kwargs: Any) -> Any:
        key = checked_key(f"{scope}:{checked_key(self._key(*args, **kwargs))}")
        owner = new_owner()
        claiming = asyncio.ensure_future(self._store.call(self._store.claim, key, owner, self._lease))
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await finished(claiming)  # the claim may have been taken although the caller was cancelled
            await self._give_back(key, owner)
            raise
        if claim.state is not ClaimState.TAKEN:
            return self._not_taken(key, claim)
        with self._store.renewals.keep(key, owner, self._lease, self._renew_for):
            try:
                result = await handler(*args, **kwargs)
            except BaseException:
                await self._give_back(key, owner)
                raise
        kept, problem = self._encoded(result)
        marking = asyncio.ensure_future(self._store.call(self._store.complete, key, owner, self._ttl, kept))
        try:
            await asyncio.shield(marking)
        except asyncio.CancelledError:
            await finished(marking)  # the work is done: that must be recorded even if the caller was cancelled
            raise
        self._ended(key, marking.result(), problem)
        return result

    async def _give_back(self, key: str, owner: str) -> None:
        await finished(asyncio.ensure_future(self._store.call(self._store.release, key, owner)))

    def _not_taken(self, key: str, claim: Claim) -> Any:
        if claim.state is ClaimState.BUSY:
            raise Busy(claim.retry_after + _AFTER_LEASE_S, f"another consumer is processing {key!r}")
        _log.debug("%s was already done", key)
        return msgspec.json.decode(claim.result) if claim.result is not None else None

    def _encoded(self, result: Any) -> tuple[bytes | None, InvalidInput | None]:
        """The encoded result. If it cannot be stored, the error is raised after the key is marked, because the work is
        done.
        """
        if not self._keep_result:
            return None, None
        try:
            kept = msgspec.json.encode(result)
        except (TypeError, ValueError) as problem:
            return None, InvalidInput(f"The work is done, but its result cannot be stored as JSON: {problem}")
        if len(kept) > RESULT_BYTES_MAX:
            return None, InvalidInput(f"The work is done, but its result is larger than {RESULT_BYTES_MAX} bytes.")
        return kept, None

    def _ended(self, key: str, held: bool, problem: InvalidInput | None) -> None:
        if not held:
            raise ClaimLost(
                f"The claim on {key!r} was taken over while the handler was running, so the work may have "
                "been done twice."
            )
        if problem is not None:
            raise problem


def new_owner() -> str:
    """A unique id for one run of a handler."""
    return secrets.token_hex(12)


async def finished(future: asyncio.Future[Any]) -> None:
    """Wait for its end however often the waiting task is cancelled; its own failure is logged."""
    while not future.done():
        try:
            await asyncio.shield(asyncio.wait([future]))
        except asyncio.CancelledError:
            continue
    failure = None if future.cancelled() else future.exception()
    if failure is not None:
        _log.warning("a claim could not be released or marked: %s", failure)
