"""The expressions about clusters, evaluated on the metrics of a real one before and after a node is killed."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser
import pytest

from tests.cluster.processes import Cluster, NodeProcess, wait_until
from tests.monitoring.promql import Scrape, Vector, evaluate, metric_names, scrape
from tests.monitoring.test_deploy import CLUSTER, QUERIES, RULES, filled_in, has_values, parts
from tests.support.nats import nats_servers

EVERY_S = 60.0


def page(node: NodeProcess) -> str:
    connection = node.connection(60)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def scraped(cluster: Cluster, at_s: float) -> Scrape:
    """All nodes that run, at one moment."""
    samples: dict[str, Vector] = {}
    for node in cluster.nodes:
        if node.running:
            for name, found in scrape(page(node), at_s, job="baton", instance=node.name).samples.items():
                samples.setdefault(name, {}).update(found)
    return Scrape(at_s, samples)


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scrape]]:
    directory = tmp_path_factory.mktemp("nodes")
    with nats_servers(1) as nats:
        log = f"{nats.address}/expressions?replicas=1&{nats.monitoring}"
        with Cluster(directory, log, "--shards", "3", nodes=2) as cluster:
            sqs = cluster.nodes[0].sqs()
            url = sqs.create_queue(QueueName="jobs")["QueueUrl"]
            sqs.send_message(QueueUrl=url, MessageBody="x")
            sqs.close()
            wait_until(lambda: live(cluster.nodes[0]) == 2, "the nodes do not see each other")
            found = [scraped(cluster, EVERY_S)]
            cluster.nodes[1].kill()
            wait_until(lambda: live(cluster.nodes[0]) == 1, "the killed node is still counted")
            wait_until(lambda: served(cluster.nodes[0]) == 3, "not all shards were taken over")
            found.append(scraped(cluster, 2 * EVERY_S))
            yield found


def live(node: NodeProcess) -> float:
    (value,) = scrape(page(node), 0.0).samples["baton_cluster_nodes"].values()
    return value


def served(node: NodeProcess) -> float:
    return sum(scrape(page(node), 0.0).samples["baton_shard_up"].values())


@pytest.mark.parametrize("expression", [one for _, one in QUERIES if metric_names(filled_in(one)) & CLUSTER])
def test_every_query_about_clusters_has_values(expression: str, scrapes: list[Scrape]) -> None:
    assert has_values(filled_in(expression), scrapes)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if metric_names(rule["expr"]) & CLUSTER])
def test_every_part_of_a_rule_about_clusters_has_values(name: str, scrapes: list[Scrape]) -> None:
    for part in parts(promql_parser.parse(RULES[name]["expr"])):
        assert has_values(part, scrapes), part


def test_a_missing_node_is_found(scrapes: list[Scrape]) -> None:
    rule = RULES["BatonNodeMissing"]["expr"]
    assert evaluate(rule, scrapes[:1]) == {} and evaluate(rule, scrapes) == {(): 1.0}


def test_moved_shards_are_counted(scrapes: list[Scrape]) -> None:
    value = evaluate('sum(increase(baton_ownership_changes_total{job="baton",instance="n0"}[5m]))', scrapes)
    assert isinstance(value, dict) and value[()] >= 1


def test_sums_over_the_nodes_count_every_message_once(scrapes: list[Scrape]) -> None:
    expression = 'sum by (queue) (baton_queue_messages{job="baton",state="visible"})'
    for end in (1, 2):
        assert evaluate(expression, scrapes[:end]) == {(("queue", "jobs"),): 1.0}
