"""The files under deploy/: valid by their schemas, and what they tell the programs is what the programs take."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import compose_spec
import kubernetes_validate
import pytest
import yaml

from batonq.cli.main import build_parser
from batonq.log.jetstream.address import parse
from tests.support.authority import Authority
from tests.support.nats import BINARY

DEPLOY = Path(__file__).resolve().parent.parent.parent / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
TLS_KEYS = ("tls.crt", "tls.key", "ca.crt")  # of a secret, as cert-manager makes it
GIVEN = {"NATS_PASSWORD": "secret1", "POD_NAME": "baton-1"}


def documents() -> list[dict[str, Any]]:
    return [document for path in MANIFESTS for document in yaml.safe_load_all(path.read_text())]


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {one["metadata"]["name"]: one for one in documents() if one["kind"] == kind}


def container(name: str) -> dict[str, Any]:
    (found,) = of_kind("StatefulSet")[name]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def compose(*names: str) -> dict[str, Any]:
    """A compose file, with others laid over it as compose does: what they say of a service replaces that."""
    made: dict[str, Any] = {}
    for name in ("compose.yaml", *names):
        for part, entries in yaml.safe_load((DEPLOY / name).read_text()).items():
            if not isinstance(entries, dict):
                made[part] = entries
                continue
            for key, value in entries.items():
                before = made.setdefault(part, {}).get(key)
                both = isinstance(before, dict) and isinstance(value, dict)
                made[part][key] = {**before, **value} if both else value
    return made


class Line(NamedTuple):
    """The command line of `baton serve` as a container gets it, and the name that the node is reached by."""

    words: list[str]
    reached_by: str
    files: set[str]  # that the container has, besides those of its image


def serve_lines() -> dict[str, Line]:
    node = container("baton")
    volumes = {each["name"]: each for each in of_kind("StatefulSet")["baton"]["spec"]["template"]["spec"]["volumes"]}
    files = {
        f"{mount['mountPath']}/{name}"
        for mount in node["volumeMounts"]
        if mount["name"] in volumes
        for name in [
            item["path"] for item in volumes[mount["name"]]["secret"].get("items", [{"path": key} for key in TLS_KEYS])
        ]
    }
    words = [re.sub(r"\$\((\w+)\)", lambda found: GIVEN[found[1]], word) for word in node["args"]]
    lines = {"kubernetes": Line(words, "baton-1.baton-nodes", files)}
    for kind, more in (("compose", ()), ("tls", ("compose.tls.yaml",))):
        for name, service in compose(*more)["services"].items():
            if name.startswith("baton"):
                files = {f"/run/secrets/{secret}" for secret in service["secrets"]}
                lines[f"{kind}-{name}"] = Line(service["command"], name, files)
    return lines


def nats_configurations() -> dict[str, str]:
    return {
        "kubernetes": of_kind("ConfigMap")["nats"]["data"]["nats.conf"],
        "compose": compose()["configs"]["nats"]["content"].replace("$$", "$"),
        "tls": compose("compose.tls.yaml")["configs"]["nats-tls"]["content"].replace("$$", "$"),
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


@pytest.mark.parametrize("more", [(), ("compose.tls.yaml",)], ids=["plain", "tls"])
def test_the_compose_file_is_what_compose_takes(more: tuple[str, ...]) -> None:
    given = compose(*more)
    made = compose_spec.PyCompose.from_yaml(yaml.safe_dump(given))  # with its `<<` put in
    made.validate()
    assert len(made.service_names()) == 6
    for service in given["services"].values():
        assert set(service.get("secrets", ())) <= given["secrets"].keys()
        assert {config["source"] for config in service.get("configs", ())} <= given["configs"].keys()


@pytest.mark.parametrize("name", serve_lines())
def test_a_node_takes_its_command_line(name: str) -> None:
    words, reached_by, files = serve_lines()[name]
    assert words[0] == "serve" and "PASSWORD" not in " ".join(words) and GIVEN["NATS_PASSWORD"] not in " ".join(words)
    options = build_parser("serve").parse_args(words)
    scheme = "http" if name.startswith("compose") else "https"
    assert options.advertise == f"{scheme}://{reached_by}:{options.port}"
    address = parse(options.log)
    assert (len(address.servers), len(address.monitors), address.replicas) == (3, 3, 3)
    assert [urlsplit(monitor).hostname for monitor in address.monitors] == [
        one.split(":")[0] for one in address.servers
    ]
    assert options.cluster_secret_file and options.secure
    assert (address.user, address.tls, bool(options.tls_cert)) == ("baton", scheme == "https", scheme == "https")
    used = (options.cluster_secret_file, options.tls_cert, options.tls_key, options.peer_ca)
    assert {path for path in (*used, address.password_file, address.tls_ca) if path} <= files


def test_cert_manager_makes_the_secrets_for_the_names_that_are_used() -> None:
    path = DEPLOY / "kubernetes" / "cert-manager" / "certificates.yaml"
    made = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(path.read_text())}
    for name, workload in of_kind("StatefulSet").items():
        volumes = workload["spec"]["template"]["spec"]["volumes"]
        (secret,) = (each["secret"]["secretName"] for each in volumes if each["name"] == "tls")
        assert made[secret]["secretName"] == secret
        assert f"*.{workload['spec']['serviceName']}" in made[secret]["dnsNames"], name
    assert "client auth" in made["nats-tls"]["usages"], "its servers show it to each other"


@pytest.mark.parametrize("where", ["kubernetes", "compose", "tls"])
def test_nats_takes_its_configuration(where: str, tmp_path: Path) -> None:
    text = nats_configurations()[where]
    assert "sync_interval: always" in text
    authority = Authority(tmp_path)
    made = authority.sign("nats", "nats-0")
    for name, file in zip(TLS_KEYS, (made.certificate, made.key, authority.file), strict=True):
        text = text.replace(f"/etc/nats-tls/{name}", f'"{file}"')
    for name, file in zip(("certificate", "key", "ca"), (made.certificate, made.key, authority.file), strict=True):
        text = text.replace(f"/run/secrets/tls-{name}", f'"{file}"')
    assert (str(made.key) in text) == (where != "compose")
    path = tmp_path / "nats.conf"
    path.write_text(text)
    environment: Mapping[str, str] = {**os.environ, **GIVEN}
    command = [str(BINARY), "-t", "--config", str(path)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr
