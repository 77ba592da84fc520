"""`python -m batonq.sim --seed N`: run one simulation, and say what was found."""

from __future__ import annotations

import argparse
import sys

from batonq.sim.bugs import BUGS
from batonq.sim.run import Outcome, simulate

LINES_MAX = 80


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m batonq.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which run (default 1)")
    parser.add_argument("--count", type=int, default=1, help="this many seeds, from --seed on")
    parser.add_argument("--steps", type=int, default=None, help="stop the clients after this many calls")
    parser.add_argument("--bug", choices=sorted(BUGS), default=None, help="plant this bug, to see it found")
    parser.add_argument("--verbose", action="store_true", help="print the whole history")
    options = parser.parse_args(arguments)
    failed = False
    for seed in range(options.seed, options.seed + options.count):
        outcome = simulate(seed, options.steps, options.bug)
        report(outcome, options.verbose)
        failed = failed or bool(outcome.violations)
    return 1 if failed else 0


def report(outcome: Outcome, verbose: bool) -> None:
    write = sys.stdout.write
    if verbose:
        write("".join(f"{line}\n" for line in outcome.lines))
    verdict = f"{len(outcome.violations)} VIOLATIONS" if outcome.violations else "ok"
    write(f"seed {outcome.seed}: {verdict}: {outcome.summary}, history {outcome.digest[:16]}\n")
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
    write(f"  again: make sim SEED={outcome.seed}{again}\n")


if __name__ == "__main__":
    sys.exit(main())
