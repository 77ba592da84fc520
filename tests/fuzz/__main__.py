"""`make fuzz`: random cases against real servers for as long as one likes, or one case again.

python -m tests.fuzz --seconds 600 --seed 7           rounds over all profiles
python -m tests.fuzz --seed 7 --profile secured --case 1234
python -m tests.fuzz --file case.json --profile secured
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from tests.fuzz import cases
from tests.fuzz.bounds import MIB
from tests.fuzz.run import Run, case_of, facts_of, fuzz
from tests.fuzz.server import FuzzedServer, Profile
from tests.fuzz.session import Session, attacking

ROUND_S = 60.0
ROUND_CASES = 1_000_000  # of one round: the next one's numbers begin behind these
SHOWN_EVERY_S = 5.0
REPLAYS = 3
SHARES = {Profile.DEVELOPMENT: 0.45, Profile.SECURED: 0.4, Profile.PROCESSES: 0.15}


class Progress:
    """One line now and then."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._began_s = self._shown_s = time.monotonic()

    def __call__(self, session: Session, number: int) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s > SHOWN_EVERY_S:
            self._shown_s = now_s
            played = session.measured.cases
            grown = (session.server.memory_bytes - session.measured.start_bytes) / MIB
            print(
                f"{self._run.profile} at case {number}: {played:,} cases, {played / (now_s - self._began_s):.0f} per "
                f"second, longest turn {session.measured.longest_turn_ms:.0f} ms, memory {grown:+.0f} MiB",
                flush=True,
            )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description="Fuzz a real server.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--profile", type=Profile, choices=list(Profile), default=None)
    parser.add_argument("--case", type=int, default=None, help="play this case alone")
    parser.add_argument("--file", type=Path, default=None, help="play the case that was saved in this file")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first finding")
    given = parser.parse_args(arguments)
    if given.case is not None or given.file is not None:
        return replay(given.profile or Profile.DEVELOPMENT, given.seed, given.case, given.file)
    profiles = [given.profile] if given.profile else list(Profile)
    print(f"seed {given.seed}, {given.seconds:.0f} s", flush=True)
    ends_s = time.monotonic() + given.seconds
    first = 0
    while time.monotonic() < ends_s:
        for profile in profiles:
            left_s = ends_s - time.monotonic()
            share = SHARES[profile] if len(profiles) > 1 else 1.0
            seconds = min(left_s, ROUND_S * 2 * share, given.seconds * share)
            if seconds <= 0:
                break
            run = Run(
                profile=profile,
                seed=given.seed,
                first=first,
                count=ROUND_CASES,
                seconds=seconds,
                findings_max=1_000 if given.keep_going else 1,
            )
            if play(run) and not given.keep_going:
                return 1
        first += ROUND_CASES
    return 0


def play(run: Run) -> int:
    """A round on a new server; the number of findings."""
    with (
        tempfile.TemporaryDirectory() as directory,
        FuzzedServer(Path(directory), run.profile) as server,
    ):
        session = uvloop.run(fuzz(server, run, Progress(run)))
    print(f"{run.profile}, seed {run.seed}: {session.measured}", flush=True)
    for note in session.notes:
        print(f"note: {note}")
    for finding in session.findings:
        print(f"\nFOUND with seed {run.seed}, profile {run.profile}:\n{finding}")
        for case in finding.cases[:3]:
            print(f"Replay: {run.replay(case)}")
    return len(session.findings)


def replay(profile: Profile, seed: int, number: int | None, file: Path | None) -> int:
    """One case alone, a few times, with what the server did each time."""

    async def play_it(server: FuzzedServer) -> Session:
        facts = await facts_of(server)
        case = cases.load(file) if file is not None else facts.fill(case_of(profile, seed, number or 0))
        print(case.show())
        async with attacking(server, findings_max=1_000) as session:
            for _ in range(REPLAYS):
                played = await session.play(case)
                await session.judge()
                print(f"statuses {played.statuses[:20]}, {(played.ended_s - played.began_s) * 1e3:.0f} ms", flush=True)
        return session

    with tempfile.TemporaryDirectory() as directory, FuzzedServer(Path(directory), profile) as server:
        session = uvloop.run(play_it(server))
    print(session.measured)
    for finding in session.findings:
        print(f"FOUND {finding.text}")
    return 1 if session.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
