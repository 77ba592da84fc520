"""The attacks that people found, one by one, on one server of each profile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
import uvloop

from tests.fuzz.attacks import ATTACKS, FLAGS, Attack
from tests.fuzz.bounds import STALL_MS_MAX
from tests.fuzz.run import facts_of
from tests.fuzz.server import FuzzedServer, Profile
from tests.fuzz.session import LANES, Finding, Session, attacking, tell

PAIRS = [(profile, attack) for profile in Profile for attack in ATTACKS if profile in attack.profiles]


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Profile, FuzzedServer]]:
    """Started when they are first asked for; one at a time."""
    running: dict[Profile, FuzzedServer] = {}
    yield running
    for server in running.values():
        assert server.stop() == 0, server.log()


async def attacked(server: FuzzedServer, attack: Attack) -> Session:
    async with attacking(server, stall_ms_max=attack.crowd_ms_max if attack.together else STALL_MS_MAX) as session:
        if attack.together:
            await asyncio.gather(*(session.play(case) for case in attack.cases()))
            await asyncio.to_thread(server.wait_until_read)
        else:
            await session.play_all(attack.cases(), lanes=1 if attack.alone else LANES)
    return session


@pytest.mark.parametrize(("profile", "attack"), PAIRS, ids=[f"{profile}-{attack.name}" for profile, attack in PAIRS])
def test_attack(
    tmp_path_factory: pytest.TempPathFactory,
    servers: dict[Profile, FuzzedServer],
    profile: Profile,
    attack: Attack,
) -> None:
    if profile not in servers:
        servers[profile] = FuzzedServer(tmp_path_factory.mktemp(profile), profile, *FLAGS)
        uvloop.run(facts_of(servers[profile]))  # there is a queue to ask about
    session = uvloop.run(attacked(servers[profile], attack))
    print(session.measured)
    if session.measured.peak_growth_bytes > attack.peak_bytes_max:
        session.findings.append(Finding("that is too much memory at its peak"))
    if session.measured.growth_bytes > attack.growth_bytes_max:
        session.findings.append(Finding("that is too much memory afterwards"))
    tell(session)
