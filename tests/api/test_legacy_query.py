"""The query protocol with a real client: the last botocore that speaks it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.api.test_shapes import LEGACY
from tests.support.server import TestServer

SCRIPT = Path(__file__).with_name("legacy_client.py")


def test_every_operation(server: TestServer, account: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(LEGACY.parent), "AWS_EC2_METADATA_DISABLED": "true"}
    result = subprocess.run(
        [sys.executable, str(SCRIPT), server.url, account],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "OK"
