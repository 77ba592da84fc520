"""The AWS CLI: every SQS command, and the `aws` executable itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.server import TestServer

SCRIPT = Path(__file__).with_name("cli_client.py")


def environment(account: str) -> dict[str, str]:
    # Nothing of the user's own configuration is to be read.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    return {
        **clean,
        "AWS_ACCESS_KEY_ID": account,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_MAX_ATTEMPTS": "1",
        "PYTHONIOENCODING": "utf-8",
    }


def test_every_command(server: TestServer, account: str) -> None:
    result = subprocess.run(
        [sys.executable, str(SCRIPT), server.url, account],
        env=environment(account),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "OK"


def test_the_executable(server: TestServer, account: str) -> None:
    aws = str(Path(sys.executable).with_name("aws"))
    options = ["--endpoint-url", server.url, "--region", "eu-west-3", "--output", "json"]
    result = subprocess.run(
        [aws, *options, "sqs", "create-queue", "--queue-name", "by-the-executable"],
        env=environment(account),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {"QueueUrl": f"{server.url}/{account}/by-the-executable"}
