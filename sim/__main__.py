"""`python -m sim --seed N`: run one simulation, of a node or a cluster, and report the findings."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sim.bugs import BUGS
from sim.cluster.bugs import CLUSTER_BUGS
from sim.cluster.run import simulate_cluster
from sim.recording import judge, write_archive, write_history
from sim.run import Outcome, Simulation, simulate
from sim.topic_bugs import TOPIC_BUGS
from sim.topics import simulate_topics

LINES_MAX = 80


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.judge is not None:
        return _judge(options.judge)
    bugs = TOPIC_BUGS if options.topics else CLUSTER_BUGS if options.cluster else BUGS
    if options.bug is not None and options.bug not in bugs:
        sys.stderr.write(f"there is no bug {options.bug!r} here; there are {', '.join(sorted(bugs))}\n")
        return 2

    def record(simulation: Simulation) -> None:
        if options.history is not None:
            write_history(simulation, options.history)
        if options.archive is not None:
            write_archive(simulation, options.archive)

    failed = False
    run = simulate_topics if options.topics else simulate_cluster if options.cluster else simulate
    for seed in range(options.seed, options.seed + options.count):
        outcome = run(seed, options.steps, options.bug, record)
        report(outcome, options.verbose, options.cluster)
        failed = failed or bool(outcome.violations)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which run (default 1)")
    parser.add_argument("--count", type=int, default=1, help="this many seeds, from --seed on")
    parser.add_argument("--cluster", action="store_true", help="a whole cluster instead of one node")
    parser.add_argument("--topics", action="store_true", help="topics on one node")
    parser.add_argument("--steps", type=int, default=None, help="stop the clients after this many calls")
    parser.add_argument(
        "--bug",
        choices=sorted(BUGS.keys() | CLUSTER_BUGS.keys() | TOPIC_BUGS.keys()),
        default=None,
        help="plant this bug, to see it found",
    )
    parser.add_argument("--verbose", action="store_true", help="print the whole history")
    parser.add_argument("--history", type=Path, default=None, metavar="FILE", help="write the (last) run's history")
    parser.add_argument(
        "--archive", type=Path, default=None, metavar="DIRECTORY", help="write its logs, for `baton pipeline audit`"
    )
    parser.add_argument("--judge", type=Path, default=None, metavar="FILE", help="check a history that was written")
    return parser


def _judge(path: Path) -> int:
    run, violations = judge(path)
    verdict = f"{len(violations)} VIOLATIONS" if violations else "ok"
    sys.stdout.write(f"seed {run.seed}: {verdict}, history {run.digest[:16]}\n")
    sys.stdout.write("".join(f"  {violation}\n" for violation in violations[:10]))
    return 1 if violations else 0


def report(outcome: Outcome, verbose: bool, cluster: bool = False) -> None:
    write = sys.stdout.write
    if verbose:
        write("".join(f"{line}\n" for line in outcome.lines))
    verdict = f"{len(outcome.violations)} VIOLATIONS" if outcome.violations else "ok"
    write(f"seed {outcome.seed}: {verdict}: {outcome.summary}, history {outcome.digest[:16]}\n")
    if outcome.tiny:
        write(f"  tiny: {outcome.tiny}\n")
    if not outcome.violations:
        return
    write(f"  {outcome.scenario}\n")
    for violation in outcome.violations[:10]:
        write(f"  {violation}\n")
    words = next((violation.words for violation in outcome.violations if violation.words), ())
    if words and not verbose:
        write("  the lines about it:\n")
        write("".join(f"    {line}\n" for line in outcome.about(words, LINES_MAX)))
    again = f" ARGS='--bug {outcome.bug}'" if outcome.bug else ""
    write(f"  again: make sim SEED={outcome.seed}{' CLUSTER=1' if cluster else ''}{again}\n")


if __name__ == "__main__":
    sys.exit(main())
