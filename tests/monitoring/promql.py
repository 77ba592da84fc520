"""Evaluates PromQL over a few scrapes of /metrics, for tests of dashboards and alert rules.

The text is parsed by promql-parser, which follows Prometheus's own grammar. Evaluated is what the expressions in
deploy/ use; anything else is an error, so nothing is passed over silently. One simplification: `rate` and `increase`
divide by the time between the first and the last sample, and do not extrapolate to the ends of the range.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import promql_parser as parser

Labels = tuple[tuple[str, str], ...]  # sorted, without the metric's name
Vector = dict[Labels, float]
_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Scrape(NamedTuple):
    """The samples of one moment: by metric name, then by labels."""

    at_s: float
    samples: dict[str, Vector]


class Unknown(Exception):
    """Something of PromQL that this evaluator does not know."""


def scrape(text: str, at_s: float, **more: str) -> Scrape:
    """Read the text format; `more` are labels that the scraper adds, as `instance` and `job`."""
    samples: dict[str, Vector] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _SAMPLE.match(line)
        assert found is not None, f"not a sample: {line!r}"
        labels = {name: _unescaped(value) for name, value in _LABEL.findall(found[2] or "")} | more
        key = tuple(sorted(labels.items()))
        assert key not in samples.get(found[1], {}), f"twice: {line!r}"
        samples.setdefault(found[1], {})[key] = float(found[3])
    return Scrape(at_s, samples)


def _unescaped(text: str) -> str:
    return re.sub(r"\\.", lambda found: _UNESCAPED[found[0]], text)


def metric_names(expression: str) -> set[str]:
    """The names of all metrics in an expression."""
    names: set[str] = set()
    _walk(parser.parse(expression), lambda node: names.add(node.name) if _is(node, "VectorSelector") else None)
    return names


def evaluate(expression: str, scrapes: list[Scrape]) -> Vector | float:
    """The value at the time of the last scrape."""
    return Evaluation(scrapes).value(parser.parse(expression))


def _walk(node: Any, see: Callable[[Any], object]) -> None:
    see(node)
    for name in ("lhs", "rhs", "expr", "vector_selector", "param"):
        child = getattr(node, name, None)
        if child is not None:
            _walk(child, see)
    for child in getattr(node, "args", None) or ():
        _walk(child, see)


def _is(node: Any, *kinds: str) -> bool:
    return type(node).__name__ in kinds


class Evaluation:
    def __init__(self, scrapes: list[Scrape]) -> None:
        assert scrapes and [one.at_s for one in scrapes] == sorted(one.at_s for one in scrapes)
        self.scrapes = scrapes
        self.now_s = scrapes[-1].at_s

    def value(self, node: Any) -> Vector | float:
        if _is(node, "ParenExpr"):
            return self.value(node.expr)
        if _is(node, "NumberLiteral"):
            return float(node.val)
        if _is(node, "UnaryExpr"):
            return _each(self.value(node.expr), lambda value: -value)
        if _is(node, "VectorSelector"):
            return self._select(node, self.scrapes[-1])
        if _is(node, "Call"):
            return self._call(node.func.name, list(node.args))
        if _is(node, "AggregateExpr"):
            return self._aggregate(node)
        if _is(node, "BinaryExpr"):
            return self._binary(node)
        raise Unknown(type(node).__name__)

    def vector(self, node: Any) -> Vector:
        found = self.value(node)
        assert isinstance(found, dict), f"{node} is not a vector"
        return found

    # --- selectors

    def _select(self, node: Any, scrape: Scrape) -> Vector:
        if node.offset is not None or node.at is not None:
            raise Unknown("offset and @")
        found = scrape.samples.get(node.name, {})
        return {labels: value for labels, value in found.items() if _matches(node.matchers.matchers, dict(labels))}

    def _range(self, node: Any) -> dict[Labels, list[tuple[float, float]]]:
        if not _is(node, "MatrixSelector"):
            raise Unknown(f"a range of {type(node).__name__}")
        seconds = node.range.total_seconds()
        series: dict[Labels, list[tuple[float, float]]] = {}
        for scrape in self.scrapes:
            if scrape.at_s > self.now_s - seconds:
                for labels, value in self._select(node.vector_selector, scrape).items():
                    series.setdefault(labels, []).append((scrape.at_s, value))
        return series

    # --- functions

    def _call(self, name: str, arguments: list[Any]) -> Vector | float:
        if name == "time":
            return self.now_s
        if name in ("rate", "increase", "changes", "max_over_time", "delta"):
            return {
                labels: result
                for labels, points in self._range(arguments[0]).items()
                if (result := _over_time(name, points)) is not None
            }
        if name == "histogram_quantile":
            share = self.value(arguments[0])
            assert isinstance(share, float)
            return _quantiles(share, self.vector(arguments[1]))
        if name == "absent":
            return {} if self.vector(arguments[0]) else {(): 1.0}
        if name == "clamp_min":
            least = self.value(arguments[1])
            assert isinstance(least, float)
            return _each(self.value(arguments[0]), lambda value: max(value, least))
        raise Unknown(name)

    # --- aggregations

    def _aggregate(self, node: Any) -> Vector:
        name = str(node.op)
        vector = self.vector(node.expr)
        if name == "topk":
            count = self.value(node.param)
            assert isinstance(count, float) and node.modifier is None
            best = sorted(vector.items(), key=lambda entry: entry[1], reverse=True)
            return dict(best[: int(count)])
        how = {"sum": sum, "max": max, "min": min, "count": len, "avg": lambda values: sum(values) / len(values)}
        if name not in how:
            raise Unknown(name)
        groups: dict[Labels, list[float]] = {}
        for labels, value in vector.items():
            groups.setdefault(_grouped(node.modifier, labels), []).append(value)
        return {labels: float(how[name](values)) for labels, values in groups.items()}  # type: ignore[operator]

    # --- operators

    def _binary(self, node: Any) -> Vector | float:
        name = str(node.op)
        left, right = self.value(node.lhs), self.value(node.rhs)
        if node.modifier is not None and node.modifier.return_bool:
            raise Unknown("bool")
        if name in ("and", "or", "unless"):
            assert isinstance(left, dict) and isinstance(right, dict)
            keys = {_matched(node.modifier, labels) for labels in right}
            if name == "or":
                mine = {_matched(node.modifier, labels) for labels in left}
                return left | {
                    labels: value for labels, value in right.items() if _matched(node.modifier, labels) not in mine
                }
            wanted = name == "and"
            return {
                labels: value for labels, value in left.items() if (_matched(node.modifier, labels) in keys) is wanted
            }
        if isinstance(left, float) and isinstance(right, float):
            return _calculated(name, left, right)
        if isinstance(right, float):
            assert isinstance(left, dict)
            return _kept(name, ((labels, value, right) for labels, value in left.items()))
        if isinstance(left, float):
            return _kept(name, ((labels, left, value) for labels, value in right.items()), keep_right=True)
        return self._matched_vectors(name, node.modifier, left, right)

    @staticmethod
    def _matched_vectors(name: str, modifier: Any, left: Vector, right: Vector) -> Vector:
        many = modifier is not None and "ManyToOne" in str(modifier.card)
        by_key: dict[Labels, float] = {}
        for labels, value in right.items():
            key = _matched(modifier, labels)
            assert key not in by_key, f"several series on the right match {key}"
            by_key[key] = value
        seen: set[Labels] = set()
        pairs = []
        for labels, value in left.items():
            key = _matched(modifier, labels)
            if key in by_key:
                assert many or key not in seen, f"several series on the left match {key}: use group_left"
                seen.add(key)
                pairs.append((labels if many or name in _COMPARISONS else key, value, by_key[key]))
        return _kept(name, pairs)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}


def _calculated(name: str, left: float, right: float) -> float:
    if name == "+":
        return left + right
    if name == "-":
        return left - right
    if name == "*":
        return left * right
    if name == "/":
        if right == 0:
            return math.nan if left == 0 else math.copysign(math.inf, left)
        return left / right
    raise Unknown(name)


def _kept(name: str, rows: Iterable[tuple[Labels, float, float]], keep_right: bool = False) -> Vector:
    compare = _COMPARISONS.get(name)
    if compare is None:
        return {labels: _calculated(name, left, right) for labels, left, right in rows}
    return {labels: right if keep_right else left for labels, left, right in rows if compare(left, right)}


def _each(value: Vector | float, change: Callable[[float], float]) -> Vector | float:
    if isinstance(value, float):
        return change(value)
    return {labels: change(one) for labels, one in value.items()}


def _matches(matchers: Iterable[Any], labels: dict[str, str]) -> bool:
    for matcher in matchers:
        value = labels.get(matcher.name, "")
        kind = str(matcher.op)
        if "Not" in kind:
            held = not re.fullmatch(matcher.value, value) if "Re" in kind else value != matcher.value
        else:
            held = bool(re.fullmatch(matcher.value, value)) if "Re" in kind else value == matcher.value
        if not held:
            return False
    return True


def _grouped(modifier: Any, labels: Labels) -> Labels:
    if modifier is None:
        return ()
    named = set(modifier.labels)
    by = "By" in str(modifier.type)
    return tuple(pair for pair in labels if (pair[0] in named) is by)


def _matched(modifier: Any, labels: Labels) -> Labels:
    """The labels by which two vectors are matched."""
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        return labels
    named = set(matching.labels)
    on = "Include" in str(matching.type)
    return tuple(pair for pair in labels if (pair[0] in named) is on)


def _over_time(name: str, points: list[tuple[float, float]]) -> float | None:
    values = [value for _, value in points]
    if name == "max_over_time":
        return max(values)
    if name == "changes":
        return float(sum(a != b for a, b in itertools.pairwise(values)))
    if len(points) < 2:
        return None
    if name == "delta":
        return values[-1] - values[0]
    rise = sum(after - before if after >= before else after for before, after in itertools.pairwise(values))
    return rise if name == "increase" else rise / (points[-1][0] - points[0][0])


def _quantiles(share: float, vector: Vector) -> Vector:
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in vector.items():
        named = dict(labels)
        bound = float(named.pop("le").replace("+Inf", "inf"))
        histograms.setdefault(tuple(sorted(named.items())), []).append((bound, value))
    return {labels: _quantile(share, sorted(buckets)) for labels, buckets in histograms.items()}


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    """As Prometheus does it: linear within a bucket, and the highest bound for what is beyond it."""
    assert buckets[-1][0] == math.inf, "a histogram needs the bucket +Inf"
    total = buckets[-1][1]
    if total == 0:
        return math.nan
    rank = share * total
    at = next(index for index, (_, count) in enumerate(buckets) if count >= rank)
    if at == len(buckets) - 1:
        return buckets[-2][0]
    start = buckets[at - 1] if at else (0.0, 0.0)
    inside = buckets[at][1] - start[1]
    return start[0] + (buckets[at][0] - start[0]) * ((rank - start[1]) / inside if inside else 0.0)
