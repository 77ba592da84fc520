"""The evaluator of PromQL that the tests of dashboard and alert rules rely on."""

from __future__ import annotations

import math

import pytest

from tests.monitoring.promql import Scrape, Unknown, Vector, evaluate, metric_names, scrape

EARLY = """
# TYPE sent_total counter
sent_total{queue="a",shard="0"} 10
sent_total{queue="a",shard="1"} 0
sent_total{queue="b",shard="0"} 100
depth{queue="a"} 4
depth{queue="b"} 0
most{queue="a"} 8
wait_bucket{le="0.1"} 0
wait_bucket{le="1"} 0
wait_bucket{le="+Inf"} 0
text{name="say \\"hi\\"\\\\"} 1
"""
LATE = """
sent_total{queue="a",shard="0"} 70
sent_total{queue="a",shard="1"} 60
sent_total{queue="b",shard="0"} 5
depth{queue="a"} 6
depth{queue="b"} 0
most{queue="a"} 8
wait_bucket{le="0.1"} 50
wait_bucket{le="1"} 90
wait_bucket{le="+Inf"} 100
"""


@pytest.fixture
def scrapes() -> list[Scrape]:
    return [scrape(EARLY, 0.0), scrape(LATE, 60.0)]


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("depth", {of(queue="a"): 6.0, of(queue="b"): 0.0}),
        ('depth{queue=~"a|c"}', {of(queue="a"): 6.0}),
        ('depth{queue!~"a.*"}', {of(queue="b"): 0.0}),
        ('depth{queue!="a",other=""}', {of(queue="b"): 0.0}),
        ("nothing", {}),
        ("absent(nothing)", {(): 1.0}),
        ("absent(depth)", {}),
        ("-depth", {of(queue="a"): -6.0, of(queue="b"): 0.0}),
        ("depth > 0", {of(queue="a"): 6.0}),
        ("5 < depth", {of(queue="a"): 6.0}),
        ("time() - 1", 59.0),
        ("clamp_min(depth, 1)", {of(queue="a"): 6.0, of(queue="b"): 1.0}),
        ("depth / most", {of(queue="a"): 0.75}),
        ("most / on (queue) depth", {of(queue="a"): 8 / 6}),
        ("sum(depth)", {(): 6.0}),
        ("count(depth)", {(): 2.0}),
        ("avg(depth)", {(): 3.0}),
        ("min(depth)", {(): 0.0}),
        ("topk(1, depth)", {of(queue="a"): 6.0}),
        ("max by (queue) (sent_total)", {of(queue="a"): 70.0, of(queue="b"): 5.0}),
        ("sum without (shard) (sent_total)", {of(queue="a"): 130.0, of(queue="b"): 5.0}),
        ('rate(sent_total{queue="a",shard="1"}[5m])', {of(queue="a", shard="1"): 1.0}),
        ('increase(sent_total{queue="b"}[5m])', {of(queue="b", shard="0"): 5.0}),  # the counter began again
        ("rate(sent_total[30s])", {}),  # a single sample has no rate
        ("delta(depth[5m])", {of(queue="a"): 2.0, of(queue="b"): 0.0}),
        ("changes(depth[5m])", {of(queue="a"): 1.0, of(queue="b"): 0.0}),
        ("max_over_time(depth[5m])", {of(queue="a"): 6.0, of(queue="b"): 0.0}),
        ("depth and on (queue) most", {of(queue="a"): 6.0}),
        ("depth unless on (queue) most", {of(queue="b"): 0.0}),
        ("most or depth", {of(queue="a"): 8.0, of(queue="b"): 0.0}),
        ("sent_total / on (queue) group_left most", {of(queue="a", shard="0"): 8.75, of(queue="a", shard="1"): 7.5}),
        ("histogram_quantile(0.5, sum by (le) (rate(wait_bucket[5m])))", {(): 0.1}),
        ("histogram_quantile(0.7, sum by (le) (rate(wait_bucket[5m])))", {(): pytest.approx(0.55)}),
        ("histogram_quantile(0.99, sum by (le) (rate(wait_bucket[5m])))", {(): 1.0}),
    ],
)
def test_expressions(expression: str, found: Vector | float, scrapes: list[Scrape]) -> None:
    assert evaluate(expression, scrapes) == found


def test_an_empty_histogram_has_no_quantile() -> None:
    (value,) = evaluate("histogram_quantile(0.5, wait_bucket)", [scrape(EARLY, 0.0)]).values()  # type: ignore[union-attr]
    assert math.isnan(value)


def test_labels_are_read_as_they_were_meant() -> None:
    found = scrape(EARLY, 0.0, instance="here").samples["text"]
    assert found == {of(name='say "hi"\\', instance="here"): 1.0}


@pytest.mark.parametrize(
    "expression", ["depth offset 5m", "depth > bool 1", "stddev(depth)", "label_join(depth)", "a[5m:1m]"]
)
def test_what_is_not_known_is_an_error(expression: str, scrapes: list[Scrape]) -> None:
    with pytest.raises((Unknown, ValueError)):
        evaluate(expression, scrapes)


@pytest.mark.parametrize("expression", ["depth / sent_total", "sent_total / on (queue) most"])
def test_vectors_that_do_not_match_one_to_one(expression: str, scrapes: list[Scrape]) -> None:
    if expression.startswith("depth"):
        assert evaluate(expression, scrapes) == {}
    else:
        with pytest.raises(AssertionError, match="use group_left"):
            evaluate(expression, scrapes)


def test_the_names_in_an_expression() -> None:
    found = metric_names('histogram_quantile(0.9, sum by (le) (rate(a_bucket[5m]))) > b and on (x) topk(3, c{d="e"})')
    assert found == {"a_bucket", "b", "c"}
