"""`python -m campaign`: rounds of faults on a real cluster. See docs/how-to/run-the-campaign.md."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from campaign.bugs import BUGS
from campaign.cluster import Broken, Cluster
from campaign.faults import FAULTS
from campaign.rounds import Pace, Report, Rounds, summary

SHOWN = 10


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description="Inject faults into a real cluster, and check the results."
    )
    parser.add_argument("--seed", type=int, default=None, help="seed of all random decisions (default: a new one)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per fault (default 20)")
    parser.add_argument("--fault", action="append", choices=sorted(FAULTS), help="only this fault; can be repeated")
    parser.add_argument("--directory", default="", help="directory for histories and logs (default: a new one)")
    parser.add_argument("--bug", default="", choices=sorted(BUGS), help="plant a bug, and stop when it is found")
    parser.add_argument("--lease-s", type=float, default=5.0, help="duration of a node's lease on a shard (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="load factor; 1 is about 40 messages/s (default 1)")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="start no new round after this time (default: no limit)"
    )
    parser.add_argument("--audit", action="store_true", help="at the end, also run `baton pipeline audit` (Spark)")
    return parser.parse_args()


async def run(arguments: argparse.Namespace, seed: int, directory: Path, reports: list[Report]) -> None:
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # so that no process is left behind
    deadline_s = time.monotonic() + arguments.minutes * 60
    async with Cluster(directory, lease_s=arguments.lease_s, bug=arguments.bug) as cluster:
        rounds = Rounds(cluster, seed, directory, Pace(arguments.scale))
        for turn in range(arguments.rounds):
            for fault in arguments.fault or FAULTS:
                if arguments.minutes and time.monotonic() > deadline_s:
                    break
                report = await rounds.run(fault)
                reports.append(report)
                print(f"{turn + 1}/{arguments.rounds} {report.line()}", flush=True)
                for violation in report.violations[:SHOWN]:
                    print(f"    {violation}", flush=True)
                if report.violations and (arguments.bug or report.broken):
                    return
        if arguments.audit:
            await cluster.wait_ready()
            await asyncio.to_thread(audit, cluster.nodes[0].url)


def audit(url: str) -> None:
    """Raises Broken if the audit of the shards' own history finds violations."""
    command = [sys.executable, "-m", "batonq", "pipeline", "audit", "--direct", "--history", url]
    print(f"$ {' '.join(command)}", flush=True)
    if subprocess.run(command, check=False).returncode:
        raise Broken("the audit found violations")


def main() -> int:
    arguments = parse()
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    directory = Path(arguments.directory or tempfile.mkdtemp(prefix="baton-campaign-")).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print(f"campaign, seed {seed}, in {directory}", flush=True)
    reports: list[Report] = []
    try:
        asyncio.run(run(arguments, seed, directory, reports))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("stopped")
    except Broken as problem:
        print(f"BROKEN: {problem}; seed {seed}, see {directory}")
        return 0 if arguments.bug else 1
    if len(reports) > 1:
        print(*summary(reports), sep="\n")
    violations = sum(len(report.violations) for report in reports)
    late = sum(len(report.late) for report in reports)
    sent = sum(report.sent for report in reports)
    print(
        f"seed {seed}: {len(reports)} rounds, {sent} acknowledged, {violations} violations, {late} times "
        f"late; histories in {directory}"
    )
    if arguments.bug:
        print(f"the bug {arguments.bug} was {'found' if violations else 'NOT FOUND'}")
        return 0 if violations else 1
    return 1 if violations or late else 0


if __name__ == "__main__":
    sys.exit(main())
