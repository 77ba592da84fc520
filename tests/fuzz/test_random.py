"""Random connections against real servers: nothing fails, nobody waits, nothing is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from tests.fuzz.run import Run, fuzz
from tests.fuzz.server import FuzzedServer, Profile
from tests.fuzz.session import tell

RUNS = (
    Run(profile=Profile.DEVELOPMENT, seed=1, count=2_000),
    Run(profile=Profile.SECURED, seed=1, count=2_500),
    Run(profile=Profile.PROCESSES, seed=1, count=200),
)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.profile))
def test_random_connections(tmp_path: Path, run: Run) -> None:
    with FuzzedServer(tmp_path, run.profile) as server:
        session = uvloop.run(fuzz(server, run))
        tell(session, run.replay)
        assert server.stop() == 0, server.log()
    statuses = session.measured.statuses
    assert session.measured.cases == run.count
    # The damage is neither too much nor too little.
    assert statuses[403] > run.count // 50 and statuses[400] > run.count // 20
    if run.profile is not Profile.PROCESSES:
        assert statuses[200] > run.count and {404, 405, 417, 431} <= statuses.keys()
