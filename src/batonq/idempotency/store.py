"""The interface of stores: claims by key, and for ordered keys the number of the last processed message.

A claim is CLAIMED by an owner until its lease expires, then DONE until its time to live ends. An expired row counts as
absent: that is how the claim of a crashed holder is taken over, and how keys are forgotten.

    absent ──claim──▶ CLAIMED ──complete──▶ DONE ──ttl──▶ absent
                        │  ▲
                        │  └── extend (the owner lives)
                        ├── release (the handler failed) ──▶ absent
                        └── lease over (the owner died)  ──▶ absent
"""

from __future__ import annotations

import asyncio
import enum
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

from batonq.errors import InvalidInput
from batonq.idempotency.renewals import Renewals

P = ParamSpec("P")
T = TypeVar("T")

KEY_BYTES_MAX = 1024
RESULT_BYTES_MAX = 1 << 20
THREADS_MAX = 8


class ClaimState(enum.Enum):
    TAKEN = "taken"  # the caller holds it now, and does the work
    BUSY = "busy"  # another consumer is processing it
    DONE = "done"  # the work was done


class Claim(NamedTuple):
    """The result of a claim."""

    state: ClaimState
    result: bytes | None = None  # DONE: the stored result of the first run
    retry_after: float = 0.0  # BUSY: seconds until the other lease expires


class Place(enum.Enum):
    """The position of a message in its key's order."""

    NEXT = "next"  # last + 1: to be processed now, by the caller
    SEEN = "seen"  # at or before the last: a duplicate
    GAP = "gap"  # its predecessor is missing
    BUSY = "busy"  # another consumer is processing this key


class Turn(NamedTuple):
    """The result of a request for a message's turn."""

    place: Place
    last: int  # the number of the last processed message; one below the first if there was none
    retry_after: float = 0.0


_stores: WeakSet[Store] = WeakSet()


class Store(ABC):
    """Stores claims. Every method is atomic, and may be called from any thread and after a fork."""

    def __init__(self) -> None:
        _stores.add(self)

    @abstractmethod
    def claim(self, key: str, owner: str, lease: float) -> Claim:
        """Take the key for this owner, unless it is done or leased by another owner."""

    @abstractmethod
    def extend(self, key: str, owner: str, lease: float) -> bool:
        """Let the lease end `lease` seconds from now; False if the owner no longer holds it."""

    @abstractmethod
    def complete(self, key: str, owner: str, ttl: float, result: bytes | None) -> bool:
        """Mark the work as done; False if another owner has the claim (and nothing was changed). May be repeated."""

    @abstractmethod
    def release(self, key: str, owner: str) -> bool:
        """The work failed; the next delivery may start at once."""

    @abstractmethod
    def forget(self, key: str) -> bool:
        """Remove all data about a key, so that its work can be done again; for manual repairs."""

    @abstractmethod
    def prune(self) -> int:
        """Remove expired rows and return their number. Stores with automatic expiry return 0."""

    @abstractmethod
    def begin_turn(self, key: str, sequence: int, owner: str, lease: float, first: int) -> Turn:
        """Take the key for this message if its number is the last one plus 1."""

    @abstractmethod
    def extend_turn(self, key: str, owner: str, lease: float) -> bool:
        """As `extend`, for the key of a turn."""

    @abstractmethod
    def end_turn(self, key: str, sequence: int, owner: str) -> bool:
        """The message was processed: its number is now the last one."""

    @abstractmethod
    def give_up_turn(self, key: str, owner: str) -> bool:
        """The handler failed; the number does not change."""

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one of the methods for a coroutine, on a thread of the store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, lambda: method(*args, **kwargs))

    @property
    def _threads(self) -> ThreadPoolExecutor:
        # Its own threads, so that handlers which occupy asyncio's cannot delay marking a claim.
        executor: ThreadPoolExecutor | None = self.__dict__.get("_executor")
        if executor is None:
            made = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="baton-claims")
            executor = self.__dict__.setdefault("_executor", made)  # setdefault: two threads may race
        return executor

    @property
    def renewals(self) -> Renewals:
        """Extends the claims of running handlers."""
        return self._renewing("_claims_renewed", self.extend)

    @property
    def turn_renewals(self) -> Renewals:
        """Extends the turns of running handlers."""
        return self._renewing("_turns_renewed", self.extend_turn)

    def _renewing(self, name: str, extend: Callable[[str, str, float], bool]) -> Renewals:
        found: Renewals | None = self.__dict__.get(name)
        return found if found is not None else self.__dict__.setdefault(name, Renewals(extend))

    def after_fork(self) -> None:
        """In the child: the threads do not exist any more, and locks and connections belong to the parent."""
        for name in ("_executor", "_claims_renewed", "_turns_renewed"):
            self.__dict__.pop(name, None)

    def close(self) -> None:
        """Release threads and connections. The store must not be used afterwards."""
        for name in ("_claims_renewed", "_turns_renewed"):
            renewals: Renewals | None = self.__dict__.pop(name, None)
            if renewals is not None:
                renewals.close()
        executor: ThreadPoolExecutor | None = self.__dict__.pop("_executor", None)
        if executor is not None:
            executor.shutdown(wait=True)


def _after_fork() -> None:
    for store in list(_stores):
        store.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def checked_key(key: object) -> str:
    """The key as it is stored, or an error that says what to do."""
    if not isinstance(key, str) or not key:
        raise InvalidInput(
            f"An idempotency key must be a non-empty string, not {key!r}. Set key=… to a function that returns one."
        )
    if "\0" in key:
        raise InvalidInput("An idempotency key must not contain a NUL character.")
    if len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidInput(f"An idempotency key can have at most {KEY_BYTES_MAX} bytes. Hash longer keys.")
    return key
