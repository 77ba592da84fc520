"""Insert, then crash: a holder that is killed half-way must not lose the work."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import redis

from batonq.idempotency import Busy, idempotent
from batonq.idempotency.tables import CLAIMS
from batonq.idempotency.transaction import create_tables
from tests.idempotency import victim
from tests.idempotency.conftest import SHARED_KINDS, connection_to, open_store

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300


def killed(form: str, kind: str, address: str, name: str, key: str, point: str) -> None:
    command = [sys.executable, "-m", "tests.idempotency.victim", form, kind, address, name, key, point]
    result = subprocess.run(command, cwd=ROOT, env=os.environ, timeout=PATIENCE_S, check=False)
    assert result.returncode == -signal.SIGKILL


def end_leases(kind: str, address: str, name: str) -> None:
    """As they are when a lease's time has passed."""
    if kind == "redis":
        with redis.Redis.from_url(address) as server:
            for key in server.keys(f"{name}:*"):
                server.pexpire(key, 1)
        return
    over = "now() - interval '1 second'" if kind == "postgres" else "0"
    with closing(connection_to(kind, address)) as connection:
        connection.execute(f"UPDATE {CLAIMS} SET until = {over}")
        connection.commit()


def delivered_until_done(handle: Callable[[str], Any], key: str) -> int:
    """Deliver a message as a queue does: again when it was busy. How often it was."""
    deadline = time.monotonic() + PATIENCE_S
    busy = 0
    while True:
        try:
            assert handle(key) == "done"
            return busy
        except Busy as held:
            assert time.monotonic() < deadline
            busy += 1
            time.sleep(min(held.delay, 0.2))


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_insert_then_crash_does_not_lose_the_work(
    kind: str, address_of: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is there, its owner is dead, nothing was done: the next delivery waits for the lease, and does it."""
    monkeypatch.setenv("EFFECTS", str(tmp_path / "effects"))
    address = address_of(kind)
    killed("claim", kind, address, tmp_path.name, "order-7", "before the effect")
    assert not (tmp_path / "effects").exists()
    handle = victim.guarded(kind, address, tmp_path.name, "")
    with pytest.raises(Busy) as first:
        handle("order-7")
    assert 0 < first.value.delay <= victim.LEASE_S + 0.1
    end_leases(kind, address, tmp_path.name)
    delivered_until_done(handle, "order-7")
    assert (tmp_path / "effects").read_text() == "order-7\n"
    assert handle("order-7") is None
    assert (tmp_path / "effects").read_text() == "order-7\n"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("point", ["before the effect", "after the effect"])
def test_in_one_transaction_a_crash_leaves_nothing_half_done(
    kind: str, point: str, address_of: Callable[[str], str], connect_to: Callable[[str, str], Any]
) -> None:
    address = address_of(kind)
    with closing(connect_to(kind, address)) as connection:
        create_tables(connection)
        connection.execute("CREATE TABLE effects (name text)")
        connection.commit()
    for number in range(2):  # killed again and again
        killed("transaction", kind, address, "-", "order-7", point)
        with closing(connect_to(kind, address)) as connection:
            assert connection.execute("SELECT count(*) FROM effects").fetchone() == (0,), number
    handle = victim.in_transaction(kind, address, "")
    assert delivered_until_done(handle, "order-7") == 0  # no lease to wait for
    assert handle("order-7") is None
    with closing(connect_to(kind, address)) as connection:
        assert connection.execute("SELECT name FROM effects").fetchall() == [("order-7",)]


@pytest.mark.parametrize("kind", SHARED_KINDS)
def test_a_store_works_in_the_child_of_a_fork(kind: str, address_of: Callable[[str], str], tmp_path: Path) -> None:
    store = open_store(kind, address_of(kind), tmp_path.name)

    @idempotent(store, key=lambda key: key)
    async def handle(key: str) -> str:
        return key

    with closing(store):
        assert asyncio.run(handle("before")) == "before"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                results = [asyncio.run(handle(key)) for key in ("before", "in the child")]
                code = 0 if results == [None, "in the child"] else 2
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert [asyncio.run(handle(key)) for key in ("in the child", "after")] == [None, "after"]
