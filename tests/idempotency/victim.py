"""A process of a consumer that is killed at a chosen point: `victim.py kind address name key point`.

Its effect is a row in `effects`. Run as a script by test_crashes.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from batonq.idempotency import idempotent, idempotent_in_transaction
from tests.idempotency.conftest import connection_to, open_store

LEASE_S = 600.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def guarded(kind: str, address: str, name: str, point: str) -> Any:
    """The handler under a claim of the store."""
    store = open_store(kind, address, name)

    @idempotent(store, key=lambda key: key, lease=LEASE_S, scope="victim")
    def handle(key: str) -> str:
        if point == "before the effect":
            die()
        with open(os.environ["EFFECTS"], "a") as effects:
            effects.write(f"{key}\n")
        if point == "after the effect":
            die()
        return "done"

    return handle


def in_transaction(kind: str, address: str, point: str) -> Any:
    """The handler in one transaction with its mark."""

    @idempotent_in_transaction(lambda: connection_to(kind, address), key=lambda key: key, scope="victim")
    def handle(key: str, connection: Any) -> str:
        if point == "before the effect":
            die()
        connection.execute(f"INSERT INTO effects (name) VALUES ('{key}')")
        if point == "after the effect":
            die()
        return "done"

    return handle


if __name__ == "__main__":
    form, kind, address, name, key, point = sys.argv[1:]
    handler = guarded(kind, address, name, point) if form == "claim" else in_transaction(kind, address, point)
    handler(key)
    raise SystemExit("the victim was to be killed")
