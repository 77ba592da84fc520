"""A new queue attribute is a row of the table, and a field of the policy if a shard has to know it; the third file that
changes, the client's types, is generated, as the pages are.

The test adds one to a copy of the source, runs the generators there, and asks for it through every interface.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

# What has to be written: the file, the line that it goes before, and the text.
EDITS = (
    (
        "src/batonq/queue_attributes.py",
        "    # --- for SQS clients only\n",
        """\
    _duration(
        name="Baton.RestSeconds",
        doc="Seconds that a queue rests.",
        low=5,
        high=600,
        default="15",
        field="rest_seconds",
        setting="rest",
        policy="rest_ms",
    ),
""",
    ),
    ("src/batonq/core/policy.py", '    retry: str = ""', "    rest_ms: int = 15 * SECOND_MS\n"),
)
MEANING = "Seconds that a queue rests. Default: 15."

PROBE = """
import asyncio, json, sys
from typing import get_type_hints
import boto3
from botocore.exceptions import ClientError
from batonq import Baton
from batonq.api.rest.openapi import document
from batonq.client.queue_settings import QueueSettings
from batonq.errors import InvalidInput
from tests.support.server import ACCOUNT, TestServer

found = {"annotation": get_type_hints(QueueSettings)["rest"].__name__}
schemas = document()["components"]["schemas"]
found["openapi"] = [schemas[name]["properties"]["restSeconds"] for name in ("QueueSpec", "Queue")]


def told(sqs, name):
    url = sqs.get_queue_url(QueueName=name)["QueueUrl"]
    asked = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Baton.RestSeconds"])
    return asked["Attributes"]["Baton.RestSeconds"]


async def use_rest(url):
    async with Baton(url) as baton:
        await baton.create_queue("by-client", rest=40)
        await baton.queue("default").update(rest=50)
        try:
            await baton.create_queue("refused", rest=601)
        except InvalidInput as error:
            refusal = str(error)
        return [(info.name, info.rest_seconds) async for info in baton.queues()], refusal


for start in ("first", "second"):
    with TestServer(sys.argv[1]) as server:
        keys = {"aws_access_key_id": ACCOUNT, "aws_secret_access_key": "x"}
        sqs = boto3.client("sqs", endpoint_url=server.url, region_name="us-east-1", **keys)
        if start == "first":
            sqs.create_queue(QueueName="by-sqs", Attributes={"Baton.RestSeconds": "20"})
            sqs.create_queue(QueueName="default")
            found["default"] = told(sqs, "default")
            try:
                sqs.create_queue(QueueName="refused", Attributes={"Baton.RestSeconds": "4"})
            except ClientError as error:
                found["refused by SQS"] = error.response["Error"]["Message"]
            found["rest"], found["refused by REST"] = asyncio.run(use_rest(server.url))
        names = ("by-client", "by-sqs", "default")
        found[start] = {name: told(sqs, name) for name in names}
        found["policy"] = [server.broker.queue(ACCOUNT, name).policy.rest_ms for name in names]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source with the new attribute, after `make sync docs`."""
    place = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copytree(ROOT / "tools", place / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copy(ROOT / "pyproject.toml", place)
    for name, line, text in EDITS:
        path = place / name
        source = path.read_text()
        assert source.count(line) == 1, name
        path.write_text(source.replace(line, text + line))
    for tool in ("make_settings.py", "make_docs.py"):
        run(place, str(place / "tools" / tool))
    return place


def run(place: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{place / 'src'}{os.pathsep}{ROOT}"}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_at_most_three_files_are_edited() -> None:
    assert len({name for name, _, _ in EDITS}) <= 3


@pytest.fixture(scope="module")
def found(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What every interface says about the new attribute."""
    told: dict[str, Any] = json.loads(run(copy, "-c", PROBE, str(tmp_path_factory.mktemp("data"))))
    return told


def test_sqs_rest_and_the_client_set_and_return_it(found: dict[str, Any]) -> None:
    assert found["default"] == "15"
    assert found["rest"] == [["by-client", 40], ["by-sqs", 20], ["default", 50]]
    assert found["first"] == {"by-client": "40", "by-sqs": "20", "default": "50"}
    assert found["annotation"] == "float"


def test_its_range_is_checked(found: dict[str, Any]) -> None:
    assert found["refused by SQS"] == "Invalid value for the parameter Baton.RestSeconds. Reason: Must be 5 to 600."
    said = f"rest must be a number, 600 or less. rest: {MEANING}"  # in the words of the client
    assert said in found["refused by REST"]


def test_the_catalog_stores_it_and_a_shard_gets_it(found: dict[str, Any]) -> None:
    assert found["second"] == found["first"]
    assert found["policy"] == [40_000, 20_000, 50_000]


def test_it_is_in_the_openapi_document(found: dict[str, Any]) -> None:
    given, told = found["openapi"]
    assert given["anyOf"][0] == {"type": "number", "minimum": 5, "maximum": 600, "multipleOf": 1}
    assert told == {"type": "integer", "description": MEANING}
    assert given["description"] == MEANING


def test_it_is_in_the_reference(copy: Path) -> None:
    reference = copy / "docs" / "reference"
    assert (
        "| `Baton.RestSeconds` | 5 to 600 | 15 | Seconds that a queue rests. |"
        in (reference / "baton-attributes.md").read_text()
    )
    rest = (reference / "rest-api.md").read_text()
    assert rest.count(f"| `restSeconds` | number from 5, to 600 | {MEANING} |") == 3
    assert f"| `restSeconds` * | integer | {MEANING} |" in rest
    assert "| `Baton.RestSeconds` | `restSeconds` | `rest` |" in rest
    client = (reference / "client.md").read_text()
    assert f"| `rest` | `float` |  | {MEANING} |" in client
    assert "| `rest_seconds` | `float \\| None` | `None` |  |" in client
