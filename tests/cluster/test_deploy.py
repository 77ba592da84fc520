"""The files under deploy/: valid by their schemas, and what they tell the programs is what the programs take."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import compose_spec
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from batonq.cli.main import build_parser
from batonq.cli.serve_arguments import settings_of
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
        if "secret" in volumes.get(mount["name"], {})
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
    workloads = of_kind("StatefulSet")
    assert workloads.keys() == {"baton", "nats"}
    for name, workload in workloads.items():
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
    options = settings_of(build_parser("serve").parse_args(words))
    scheme = "http" if name.startswith("compose") else "https"
    assert options.advertise == f"{scheme}://{reached_by}:{options.port}"
    address = parse(options.log_url)
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


# --- no more rights than are needed -------------------------------------------------------------


@pytest.mark.parametrize("name", ["baton", "nats"])
def test_a_pod_has_no_right_that_it_does_not_need(name: str) -> None:
    pod = of_kind("StatefulSet")[name]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def allowed(name: str, direction: str) -> set[tuple[str, int]]:
    """Who may reach a pod, or is reached by it, at which port."""
    policy = of_kind("NetworkPolicy")[name]["spec"]
    labels = of_kind("StatefulSet")[name]["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}
    found = set()
    for rule in policy[direction]:
        for peer in rule.get("from", rule.get("to", [{}])):
            who = peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"] if "podSelector" in peer else "anybody"
            found |= {(who, port["port"]) for port in rule["ports"]}
    return found


def test_only_nodes_reach_nats() -> None:
    assert allowed("nats", "ingress") == {("baton", 4222), ("baton", 8222), ("nats", 6222)}
    assert allowed("nats", "egress") == {("nats", 6222), ("anybody", 53)}
    assert allowed("baton", "ingress") == {("anybody", 9324)}
    assert allowed("baton", "egress") == {("nats", 4222), ("nats", 8222), ("baton", 9324), ("anybody", 53)}
    for name in ("nats", "baton"):
        ports = {port["containerPort"] for port in container(name)["ports"]}
        assert ports == {port for _, port in allowed(name, "ingress")}


@pytest.mark.parametrize("more", [(), ("compose.tls.yaml",)], ids=["plain", "tls"])
def test_compose_publishes_nothing_beyond_this_machine(more: tuple[str, ...]) -> None:
    services = compose(*more)["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert len(published) == 3 and all(port.startswith("127.0.0.1:") for port in published)
    for service in services.values():
        assert service["cap_drop"] == ["ALL"] and service["security_opt"] == ["no-new-privileges:true"]


# --- the image --------------------------------------------------------------------------------


def locked(name: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Package → version and hashes, of a file under requirements/."""
    text = (DEPLOY.parent / "requirements" / f"{name}.txt").read_text()
    rows = re.findall(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=\S+(?: \\)?\n?)+)", text, re.MULTILINE)
    return {canonicalize_name(name): (version, frozenset(hashes.split())) for name, version, hashes in rows}


def needed(*given: str) -> set[str]:
    """The packages that requirements come down to, here on Linux."""
    found: set[str] = set()
    seen: set[str] = set()
    waiting = list(given)
    while waiting:
        one = Requirement(waiting.pop())
        found.add(canonicalize_name(one.name))
        for text in requires(one.name) or ():
            inner = Requirement(text)
            if inner.marker is None or any(inner.marker.evaluate({"extra": extra}) for extra in one.extras or {""}):
                inner.marker = None
                if str(inner) not in seen:
                    seen.add(str(inner))
                    waiting.append(str(inner))
    return found


def test_the_image_has_nothing_without_a_hash() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes -r /build/requirements/image.txt" in installs[0]
    assert all(option in installs[1] for option in ("--no-index", "--no-deps", "--no-build-isolation"))
    assert [line.split()[1] for line in lines if line.startswith("FROM")] == ["${PYTHON_IMAGE}"] * 2  # by a digest, too


def test_the_image_has_all_that_its_extras_need_in_the_versions_of_the_tests() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*extras["server"], *extras["cluster"], *extras["postgres"], *project["dependencies"], "setuptools"]
    image = locked("image")
    assert image.keys() == needed(*[one for one in wanted if not one.startswith("batonq[")])
    tested = {**locked("server"), **locked("dev"), **locked("cluster")}
    assert {name: tested[name] for name in image} == image
    assert all(hashes for _, hashes in image.values())
