"""The client for threads is the one for asyncio, and loading either brings no part of the server along."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib.metadata import requires
from pathlib import Path

import pytest

import batonq
from batonq import sync
from batonq.client import Baton, Job, Message, Queue
from tools import make_settings, make_sync

NOT_LOADED = (
    "uvloop",
    "google_crc32c",
    "batonq.node",
    "batonq.core",
    "batonq.log",
    "batonq.api",
    "batonq.cli",
    "psycopg",
)


def test_what_is_made_is_up_to_date() -> None:
    assert [path.name for path in make_sync.outdated()] == [], "run make sync"
    assert not make_settings.outdated(), "run make sync"


@pytest.mark.parametrize(
    ("source", "made"), [(Baton, sync.Baton), (Queue, sync.Queue), (Message, sync.Message), (Job, sync.Job)]
)
def test_both_have_the_same_names_and_arguments(source: type, made: type) -> None:
    members = {name: member for name, member in vars(source).items() if inspect.isfunction(member) and name[0] != "_"}
    assert members
    for name, member in members.items():
        other = inspect.getattr_static(made, name)
        assert list(inspect.signature(member).parameters) == list(inspect.signature(other).parameters)
        assert not inspect.iscoroutinefunction(other) and not inspect.isasyncgenfunction(other)
        assert member.__doc__


def test_every_public_name_is_documented() -> None:
    for name in batonq._PLACES:
        assert inspect.getdoc(getattr(batonq, name)), name
    for kind in (Baton, Queue, Message, Job):
        for name, member in vars(kind).items():
            if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                assert inspect.getdoc(member), f"{kind.__name__}.{name}"


def _run(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.strip()


@pytest.mark.parametrize("line", ["import batonq", "from batonq import Baton", "from batonq.sync import Baton"])
def test_no_part_of_the_server_is_loaded(line: str) -> None:
    loaded = _run(f"{line}\nimport sys\nprint(*sys.modules)").split()
    assert [name for name in NOT_LOADED if name in loaded] == []


def test_import_batonq_loads_itself_alone() -> None:
    before = set(_run("import sys\nprint(*sys.modules)").split())
    after = set(_run("import batonq, sys\nprint(*sys.modules)").split())
    assert {name for name in after - before if not name.startswith("batonq")} == set()


def test_what_loading_costs_is_reported() -> None:
    """A figure for people: it depends on the machine, so nothing is asserted about it."""
    time = "import time\nstart = time.process_time()\n{}\nprint(time.process_time() - start)"
    ours = float(_run(time.format("from batonq import Baton")))
    asyncio = float(_run(time.format("import asyncio")))
    base = [line for line in requires("batonq") or [] if "extra ==" not in line]
    print(f"from batonq import Baton: {ours * 1000:.0f} ms of CPU, {ours / asyncio:.1f} x import asyncio")
    print(f"dependencies: {len(base)}, {', '.join(base)}")
    assert len(base) == 2


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Batton'"):
        _ = batonq.Batton  # type: ignore[attr-defined]
    assert {"Baton", "open", "connect"} <= set(dir(batonq))


USER = """
import asyncio
from batonq import Baton, Exponential, Message, Outgoing, Sent, BatonError
import batonq
import batonq.sync
import batonq.testing

async def main() -> None:
    async with Baton("http://127.0.0.1:9324") as baton:
        queue = await baton.create_queue("jobs", visibility=30, retry=Exponential(base_seconds=1))
        sent: Sent = await queue.send({"n": 1}, priority="high")
        results: list[Sent | BatonError] = await queue.send_many([Outgoing("x"), "y"])
        async for message in queue:
            await handle(message)

async def handle(message: Message) -> None:
    deadline: float = await message.extend(60)
    await message.ack()

def plain() -> None:
    with batonq.open("queues") as baton:
        for message in baton.queue("jobs"):
            body: object = message.body
            message.ack()
    with batonq.testing.memory() as memory:
        memory.clock.advance(10)
        reveal_type(memory.queue("x").send("y"))

asyncio.run(main())
"""

WRONG = """
from batonq import Baton
async def main(baton: Baton) -> None:
    await baton.create_queue("jobs", visibilty=30)
    await baton.queue("jobs").send("x", priority="urgent")
    baton.nothing()
"""


def test_users_have_types(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER)
    (tmp_path / "wrong.py").write_text(WRONG)
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "user.py", "wrong.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    lines = [line for line in result.stdout.splitlines() if line.startswith(("user.py", "wrong.py"))]
    assert [line for line in lines if line.startswith("user.py") and "error" in line] == [], result.stdout
    assert any('Revealed type is "batonq.client.models.Sent"' in line for line in lines)
    wrong = [line for line in lines if line.startswith("wrong.py") and "error" in line]
    assert len(wrong) == 3, result.stdout
