"""The OpenAPI document holds: schemathesis sends thousands of requests, good and bad, and follows its links.

No answer is a 5xx, and none is one that the document does not describe.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from batonq.api.rest.openapi import document
from tests.support.profile import FULL
from tests.support.server import TestServer

HERE = Path(__file__).parent
EXAMPLES = 60 if FULL else 8  # of each operation; the boundaries of every field come on top
CASES_MIN = 3_000 if FULL else 1_500
SEED = 1
STATEFUL_SEEDS = range(16, 24) if FULL else (16, 22)  # each is a few dozen scenarios, and always the same ones
REQUEST_S = 120  # a long poll takes twenty seconds by itself
LIMIT_S = 2_000


def run(server: TestServer, *options: str) -> str:
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "--config-file",
        str(HERE / "schemathesis.toml"),
        "run",
        f"{server.url}/v1/openapi.json",
        *options,
        f"--request-timeout={REQUEST_S}",
        "--generation-database=none",
        "--no-color",
    ]
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.rest.schema_hooks", "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def cases(report: str) -> int:
    found = re.search(r"([0-9,]+) generated", report)
    assert found is not None, report[-2_000:]
    return int(found[1].replace(",", ""))


def test_every_request_has_an_answer_that_the_document_describes(server: TestServer) -> None:
    options = ("--phases=examples,coverage,fuzzing", f"--max-examples={EXAMPLES}", f"--seed={SEED}")
    assert cases(run(server, *options)) > CASES_MIN


def test_what_follows_from_an_answer_has_one_too(tmp_path: Path) -> None:
    """On servers of its own: what other tests have left would decide which links can be followed."""
    covered: list[int] = []
    for seed in STATEFUL_SEEDS:
        with TestServer(str(tmp_path / str(seed))) as own:
            report = run(own, "--phases=stateful", "--max-examples=300", f"--seed={seed}")
        links = re.search(r"API Links: +([0-9]+) covered", report)
        assert links is not None, report[-4_000:]
        covered.append(int(links[1]))
    assert max(covered) > 10, covered


def test_the_document_is_whole() -> None:
    """Every reference leads somewhere, and every operation has a name of its own."""
    text = json.dumps(document())
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', text)):
        at = document()
        for part in reference.split("/"):
            at = at[part]
    names = re.findall(r'"operationId": "([A-Za-z]+)", "summary"', text)
    assert len(names) == len(set(names)) > 20
