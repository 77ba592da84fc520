"""The files under deploy/: valid by their schemas, and what they tell the programs is what the programs take."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import compose_spec
import kubernetes_validate
import pytest
import yaml

from batonq.cli.main import build_parser
from batonq.log.jetstream.address import parse
from tests.support.nats import BINARY

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
GIVEN = {"NATS_PASSWORD": "secret1", "POD_NAME": "baton-1"}


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents() if one["kind"] == kind}


def container(name: str) -> dict[str, Any]:
    (found,) = of_kind("StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text()))


def serve_lines() -> list[tuple[str, list[str]]]:
    """The command lines of `baton serve`, as a container gets them, and the name that the node is reached by."""
    pod = [re.sub(r"\$\((\w+)\)", lambda found: GIVEN[found[1]], word) for word in container("baton")["args"]]
    lines = [("baton-1.baton-nodes", pod)]
    for name, service in compose()["services"].items():
        if name.startswith("baton"):
            lines.append((name, [re.sub(r"\$\{(\w+)\}", lambda found: GIVEN[found[1]], w) for w in service["command"]]))
    return lines


def nats_configurations() -> dict[str, str]:
    return {
        "kubernetes": of_kind("ConfigMap")["nats"]["data"]["nats.conf"],
        "compose": compose()["configs"]["nats"]["content"].replace("$$", "$"),
    }


@pytest.mark.parametrize("document", documents(), ids=lambda one: f"{one['kind']}-{one['metadata']['name']}")
def test_a_manifest_is_what_kubernetes_takes(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def test_selectors_find_their_pods_and_disruption_takes_one_of_three() -> None:
    for name, workload in of_kind("StatefulSet").items():
        set_of, pod = workload["spec"], workload["spec"]["template"]
        budget = of_kind("PodDisruptionBudget")[name]["spec"]
        spread = [one["labelSelector"] for one in pod["spec"]["topologySpreadConstraints"]]
        selectors = [one["matchLabels"] for one in (set_of["selector"], budget["selector"], *spread)]
        selectors.append(of_kind("Service")[set_of["serviceName"]]["spec"]["selector"])
        assert all(selector.items() <= pod["metadata"]["labels"].items() for selector in selectors)
        assert (set_of["replicas"], budget["maxUnavailable"]) == (3, 1)


def test_the_compose_file_is_what_compose_takes() -> None:
    made = compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose()))  # with its `<<` put in
    made.validate()
    assert len(made.service_names()) == 6


@pytest.mark.parametrize(("reached_by", "line"), serve_lines(), ids=lambda one: one if isinstance(one, str) else "")
def test_a_node_takes_its_command_line(reached_by: str, line: list[str]) -> None:
    assert line[0] == "serve"
    options = build_parser("serve").parse_args(line)
    assert options.advertise == f"http://{reached_by}:{options.port}"
    address = parse(options.log)
    assert (len(address.servers), len(address.monitors), address.replicas) == (3, 3, 3)
    assert [urlsplit(monitor).hostname for monitor in address.monitors] == [
        one.split(":")[0] for one in address.servers
    ]
    assert options.cluster_secret_file and options.secure


@pytest.mark.parametrize("where", ["kubernetes", "compose"])
def test_nats_takes_its_configuration(where: str, tmp_path: Path) -> None:
    text = nats_configurations()[where]
    assert "sync_interval: always" in text
    path = tmp_path / "nats.conf"
    path.write_text(text)
    environment: Mapping[str, str] = {**os.environ, **GIVEN}
    command = [str(BINARY), "-t", "--config", str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr
