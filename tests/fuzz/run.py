"""Random cases by seed and number, and a run of many of them against one server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.asker import Asker
from tests.fuzz.bounds import MIB
from tests.fuzz.cases import ATTACKER, Case, End
from tests.fuzz.chance import Chance
from tests.fuzz.documents import PLACEHOLDERS, QUEUE, Facts, document_case, internal
from tests.fuzz.grammar import http_case, well_formed_case
from tests.fuzz.server import FuzzedServer, Profile
from tests.fuzz.session import Finding, Session, attacking

WARM_UP = {Profile.DEVELOPMENT: 300, Profile.SECURED: 300, Profile.PROCESSES: 60}
WARM_UP_SEED = -1
WITHOUT_TLS = " without TLS"
GROWTH_BYTES_MAX = 24 * MIB  # of a run, after all connections are closed: caches, and what the allocator keeps
PEAK_BYTES_MAX = 64 * MIB  # of a run: its connections are few, and a request's body is small beside that


@dataclass(slots=True, frozen=True, kw_only=True)
class Run:
    """The cases from `first` on, until `count` or `seconds` have passed."""

    profile: Profile
    seed: int
    first: int = 0
    count: int = 1 << 60
    seconds: float = 1e9
    findings_max: int = 1

    def replay(self, case: Case) -> str:
        """A command that plays a case again; with the bytes in a file, since they hold what the server gave."""
        path = Path(tempfile.gettempdir()) / f"fuzz-{case.name.replace(' ', '-')}.json"
        case.save(path)
        *_, seed, _, number = case.name.removesuffix(WITHOUT_TLS).split()
        by_number = f"make fuzz PROFILE={self.profile} SEED={seed} CASE={number}"
        return f"{by_number}\n    or, with just these bytes: make fuzz PROFILE={self.profile} FILE={path}"


def case_of(profile: Profile, seed: int, number: int) -> Case:
    """A case follows from profile, seed and number. `Facts.fill` puts in what the server gave us."""
    chance = Chance(f"{profile} {seed} {number}")
    name = f"{profile} seed {seed} case {number}"
    kind = chance.random()
    if profile is Profile.PROCESSES and kind < 0.6:
        if kind < 0.15:
            return hello_case(chance, name)
        return Case(name=name, segments=(internal(chance).encode(),), end=End.OPEN)
    if kind < 0.5:
        return http_case(chance, name)
    if kind < 0.57:
        return well_formed_case(chance, name)
    return document_case(chance, name, PLACEHOLDERS, secured=profile is not Profile.DEVELOPMENT)


def hello_case(chance: Chance, name: str) -> Case:
    """What a server with TLS reads first: a hello, damaged, or something else."""
    body = b"\x03\x03" + chance.randbytes(32) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + b"\x00\x00"
    hello = b"\x16\x03\x01" + (len(body) + 4).to_bytes(2, "big") + b"\x01" + len(body).to_bytes(3, "big") + body
    data = chance.made(
        [
            (3, lambda: chance.damaged(hello)),
            (1, lambda: hello[: chance.randint(0, len(hello))]),
            (1, lambda: b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            (1, lambda: chance.noise(2_000)),
            (1, lambda: b"\x16\x03\x01\xff\xff" + bytes(0xFFFF)),
        ]
    )
    end = End.HALF_CLOSE if chance.maybe(0.8) else End.RESET
    return Case(name=name + WITHOUT_TLS, segments=chance.split(data), end=end, plain=True)


async def facts_of(server: FuzzedServer) -> Facts:
    """A queue to ask about, and a receipt of it."""
    asker = Asker(server, ATTACKER)
    try:
        await asker.good("POST", "/v1/queues", {"name": QUEUE})
        await asker.good("POST", f"/v1/queues/{QUEUE}/messages", {"body": "the first"})
        [message] = (await asker.good("POST", f"/v1/queues/{QUEUE}/messages:receive", {}))["messages"]
    finally:
        await asker.close()
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return Facts(str(server.port), message["receiptHandle"], server.key.id, moment)


async def fuzz(server: FuzzedServer, run: Run, progress: Callable[[Session, int], None] | None = None) -> Session:
    """Play the cases of a run. What the session has found is the outcome."""
    facts = await facts_of(server)
    async with attacking(server, run.findings_max) as warm:
        await warm.play_all(
            facts.fill(case_of(run.profile, WARM_UP_SEED, number)) for number in range(WARM_UP[run.profile])
        )
    if len(warm.findings) >= run.findings_max:
        return warm
    async with attacking(server, run.findings_max) as session:

        def cases() -> Iterator[Case]:
            until_s = time.monotonic() + run.seconds
            for number in range(run.first, run.first + run.count):
                if time.monotonic() > until_s:
                    return
                if progress is not None:
                    progress(session, number)
                yield facts.fill(case_of(run.profile, run.seed, number))

        await session.play_all(cases())
    measured = session.measured
    if measured.growth_bytes > GROWTH_BYTES_MAX:
        session.findings.append(Finding(f"memory grew by {measured.growth_bytes / MIB:.1f} MiB and stays"))
    if measured.peak_growth_bytes > PEAK_BYTES_MAX:
        session.findings.append(Finding(f"memory grew by {measured.peak_growth_bytes / MIB:.1f} MiB at its peak"))
    return session
