"""deploy/grafana and deploy/prometheus: every expression is parsed, and evaluated on the metrics of real servers.

An alert rule is taken apart at `and`, `unless` and comparisons. Each part must have a value on a server under load, so
a misspelled metric or label is found also where the alert does not fire. What needs a cluster or a certificate is
evaluated on such a server.
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.monitoring.promql import Scrape, evaluate, metric_names
from tests.monitoring.scenario import Scraper, loaded
from tests.support.authority import Authority
from tests.system.process import ServerProcess
from tools import make_dashboard

ROOT = Path(__file__).resolve().parent.parent.parent
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "baton.json").read_text())
GROUPS = yaml.safe_load((ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text())["groups"]
RULES = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
VARIABLES = {"$__rate_interval": "5m", "$job": ".*", "$queue": ".*", "$worker_job": ".*"}

CLUSTER = {
    "baton_cluster_nodes",
    "baton_follower_lag_seconds",
    "baton_ownership_changes_total",
}
CERTIFICATE = {"baton_certificate_expiry_timestamp_seconds"}
ARCHIVE = {"baton_archive_behind_bytes"}
# Rules whose expression has no value while all is well, changed so that it has one here.
EMPTY_WHEN_WELL = {"BatonManyErrors": ("5..", "4.."), "BatonAlarm": (',severity="critical"', "")}
# Rules that the scenario makes true, and the queues that they are true of.
FIRING = {
    "BatonDeadLetters": {"jobs-dead"},
    "BatonDeadMessages": {"stuck"},
    "BatonSlaMissed": {"jobs"},
    "BatonMessagesExpired": {"lost"},
    "BatonLeasesExpire": {"slow"},
    "BatonManyFailures": {"slow"},
    "BatonWorkerDeadLetters": set(),
    "BatonCopiesDropped": set(),
    "BatonCopiesWait": set(),
    "BatonScheduleWaits": {"tight"},
    "BatonQueuePaused": {"held"},
}
QUIET = {
    *("BatonDown", "BatonQueuesUnavailable", "BatonShardDown", "BatonDiskFull", "BatonInternalErrors"),
    *("BatonManyErrors", "BatonLimitNear", "BatonOpenFilesNear", "BatonQueueLimitNear", "BatonBacklogGrows"),
    *("BatonWorkerLosesLeases", "BatonReaderLag"),
}


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scrape]]:
    with loaded(tmp_path_factory.mktemp("loaded")) as found:
        yield found


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scrape]]:
    """Scrapes of a server with a certificate that is valid for 20 days, and with an archive."""
    directory = tmp_path_factory.mktemp("certified")
    authority = Authority(directory / "authority")
    flags = authority.sign("server", "127.0.0.1").flags
    archive = ("--archive", f"file://{directory / 'archive'}")
    with ServerProcess(directory / "data", *flags, *archive) as server:
        scraper = Scraper(server.url, ssl.create_default_context(cafile=str(authority.file)))
        scraper.scrape()
        yield scraper.scrapes


def filled_in(expression: str) -> str:
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def parts(node: Any) -> list[str]:
    """What an alert rule compares: its operands at `and`, `or`, `unless` and comparisons, without bare numbers."""
    kind = type(node).__name__
    if kind == "ParenExpr":
        return parts(node.expr)
    if kind == "BinaryExpr" and str(node.op) in ("and", "or", "unless", "==", "!=", ">", "<", ">=", "<="):
        return parts(node.lhs) + parts(node.rhs)
    text = node.prettify()
    return [re.sub(r"\s+", " ", text)] if metric_names(text) else []


def has_values(expression: str, scrapes: list[Scrape]) -> bool:
    """Whether the expression has a value at one of the scrapes at least."""
    return any(evaluate(expression, scrapes[:end]) != {} for end in range(1, len(scrapes) + 1))


# --- the dashboard


def test_the_dashboard_is_what_its_tool_makes() -> None:
    assert make_dashboard.TARGET.read_text() == make_dashboard.text(), "run tools/make_dashboard.py"


def test_the_dashboard_has_a_place_for_every_panel() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        columns = range(place["x"], place["x"] + place["w"])
        cells = {(x, y) for x in columns for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert {row["title"] for row in DASHBOARD["panels"] if row["type"] == "row"} >= {
        *("Overview", "Queues", "Latency", "Dead letters", "Server and cluster", "Workers")
    }
    known = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD["panels"]))) - {"__rate_interval"}
    assert used <= known


@pytest.mark.parametrize(("title", "expression"), QUERIES)
def test_every_query_of_the_dashboard_has_values(title: str, expression: str, scrapes: list[Scrape]) -> None:
    expression = filled_in(expression)
    if metric_names(expression) & CLUSTER:
        assert evaluate(expression, scrapes) == {}  # a server alone has none; see test_cluster_expressions.py
    else:
        assert has_values(expression, scrapes), f"{title}: {expression}"


# --- the alert rules


def test_rules_have_what_an_alert_needs() -> None:
    assert len(RULES) == sum(len(group["rules"]) for group in GROUPS), "two rules have the same name"
    for name, rule in RULES.items():
        assert name.startswith("Baton") and rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        text = (ROOT / page).read_text()
        headings = {line.lstrip("# ").lower().replace(" ", "-") for line in text.splitlines() if line.startswith("#")}
        assert not anchor or anchor in headings, f"{name}: {page} has no heading {anchor}"
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        found = set(re.findall(r"\w+", rule["expr"])) | {"instance"}
        assert labels <= found | {"shard", "limit", "task"}, f"{name} shows labels that its expression drops"


@pytest.mark.parametrize("name", RULES)
def test_every_part_of_every_rule_has_values(name: str, scrapes: list[Scrape], certified: list[Scrape]) -> None:
    expression = RULES[name]["expr"].replace(*EMPTY_WHEN_WELL.get(name, ("", "")))
    for part in parts(promql_parser.parse(expression)):
        names = metric_names(part)
        if not names & CLUSTER:  # for these see test_cluster_expressions.py
            assert has_values(part, certified if names & (CERTIFICATE | ARCHIVE) else scrapes), part


@pytest.mark.parametrize("name", FIRING)
def test_rules_fire_when_they_should(name: str, scrapes: list[Scrape]) -> None:
    found: set[str] = set()
    fired = False
    for end in range(1, len(scrapes) + 1):
        value = evaluate(RULES[name]["expr"], scrapes[:end])
        assert isinstance(value, dict)
        fired = fired or bool(value)
        found |= {dict(labels)["queue"] for labels in value if "queue" in dict(labels)}
    assert fired and FIRING[name] <= found


@pytest.mark.parametrize("name", sorted(QUIET))
def test_rules_are_quiet_when_they_should_be(name: str, scrapes: list[Scrape]) -> None:
    for end in range(1, len(scrapes) + 1):
        assert evaluate(RULES[name]["expr"], scrapes[:end]) == {}


def test_the_rule_for_missing_consumers(scrapes: list[Scrape]) -> None:
    value = evaluate(RULES["BatonNoConsumer"]["expr"], scrapes)
    assert isinstance(value, dict)
    queues = {dict(labels)["queue"] for labels in value}
    assert "idle" in queues and not queues & {"jobs-dead", "slow"}  # dead letters wait for a person, and slow is polled


def test_the_rule_for_certificates(certified: list[Scrape]) -> None:
    (metric,) = CERTIFICATE
    ((labels, expiry_s),) = certified[-1].samples[metric].items()
    rule = RULES["BatonCertificateExpires"]["expr"]
    soon = [Scrape(expiry_s - 13 * 86400, certified[-1].samples)]
    later = [Scrape(expiry_s - 15 * 86400, certified[-1].samples)]
    found = evaluate(rule, soon)
    assert isinstance(found, dict) and found[labels] == pytest.approx(13 * 86400) and evaluate(rule, later) == {}
