"""Filter policies evaluated the simplest way: on the JSON as it is written, without compiling anything.

`policies` and `messages` draw policies as botocore sends them (JSON texts) and messages over a small alphabet, so that
policies and messages meet often.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_network
from operator import eq, ge, gt, le, lt
from typing import Any, NamedTuple

from hypothesis import strategies as st

from batonq.core.payload import Attribute

ATTRIBUTES = "MessageAttributes"
BODY = "MessageBody"


class Message(NamedTuple):
    attributes: dict[str, tuple[str, str]]  # name → data type and text
    body: Any

    def encoded(self) -> dict[str, Attribute]:
        return {
            name: Attribute(name, kind, text.encode(), kind == "Binary")
            for name, (kind, text) in self.attributes.items()
        }


def naive_matches(text: str, scope: str, message: Message) -> bool:
    """Whether a message matches a policy that is known to be valid."""
    policy = json.loads(text)
    if not policy:
        return True
    if scope == ATTRIBUTES:
        found = {name: _values(*given) for name, given in message.attributes.items() if given[0] != "Binary"}
        return bool(found) and _holds(policy, "", found)
    if not isinstance(message.body, dict):
        return False
    found = {}
    for path, value in _leaves(message.body, ""):
        found.setdefault(path, []).append(value)
    return _holds(policy, "", found)


def _values(kind: str, text: str) -> list[Any]:
    if kind.endswith(".Array"):
        try:
            values = json.loads(text)
        except ValueError:
            return []
        return [value for _, value in _leaves({"x": values}, "")] if isinstance(values, list) else []
    return [float(text)] if kind == "Number" else [text]


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(child, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for child in value:
            yield from _leaves(child, path)
    else:
        yield path, value


def _holds(policy: dict[str, Any], prefix: str, found: dict[str, list[Any]]) -> bool:
    for key, rules in policy.items():
        path = f"{prefix}.{key}" if prefix else key
        if key == "$or" and len(rules) > 1 and all(isinstance(rule, dict) for rule in rules):
            if not any(_holds(choice, prefix, found) for choice in rules):
                return False
        elif isinstance(rules, dict):
            if not _holds(rules, path, found):
                return False
        elif not any(_rule_holds(rule, found.get(path, [])) for rule in rules):
            return False
    return True


def _rule_holds(rule: Any, values: list[Any]) -> bool:
    if isinstance(rule, dict) and "exists" in rule:
        return bool(rule["exists"]) == any(value not in (None, "") or value is False for value in values)
    return any(_one_holds(rule, value) for value in values)


def _equal(one: Any, other: Any) -> bool:
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


_SIGNS: dict[str, Callable[[float, float], bool]] = {"=": eq, "<": lt, "<=": le, ">": gt, ">=": ge}


def _one_holds(rule: Any, value: Any) -> bool:
    if not isinstance(rule, dict):
        return _equal(rule, value)
    [(operator, operand)] = rule.items()
    if operator == "anything-but":
        if isinstance(operand, dict):
            [(inner, texts)] = operand.items()
            return not any(_one_holds({inner: text}, value) for text in (texts if isinstance(texts, list) else [texts]))
        return not any(_equal(one, value) for one in (operand if isinstance(operand, list) else [operand]))
    if operator == "numeric":
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return all(_SIGNS[sign](value, number) for sign, number in zip(operand[::2], operand[1::2], strict=True))
    if not isinstance(value, str):
        return False
    if operator == "cidr":
        try:
            return ip_address(value) in ip_network(operand)
        except ValueError:
            return False
    holds: dict[str, bool] = {
        "prefix": value.startswith(operand),
        "suffix": value.endswith(operand),
        "equals-ignore-case": value.lower() == operand.lower(),
    }
    return holds[operator]


texts = st.sampled_from(["a", "A", "b", "ab", "aB", "ba", "abc", "cab", "10.0.0.1", "10.0.1.7", "fe80::1", "5"])
numbers = st.sampled_from([-3, 0, 1, 2.0, 2.5, 5, 100])
plain_values = texts | numbers | st.booleans() | st.none()
keys = st.sampled_from(["k", "l", "m", "k.l", "$or"])


@st.composite
def numeric_rules(draw: st.DrawFn) -> list[Any]:
    if draw(st.booleans()):
        return [draw(st.sampled_from(["=", "<", "<=", ">", ">="])), draw(numbers)]
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    return [draw(st.sampled_from([">", ">="])), low, draw(st.sampled_from(["<", "<="])), high]


rules = st.one_of(
    plain_values,
    st.fixed_dictionaries({"prefix": texts}),
    st.fixed_dictionaries({"suffix": texts}),
    st.fixed_dictionaries({"equals-ignore-case": texts}),
    st.fixed_dictionaries({"exists": st.booleans()}),
    st.fixed_dictionaries({"numeric": numeric_rules()}),
    st.fixed_dictionaries(
        {"cidr": st.sampled_from(["10.0.0.0/24", "10.0.0.0/8", "0.0.0.0/0", "fe80::/16", "5.0.0.0/8"])}
    ),
    st.fixed_dictionaries(
        {
            "anything-but": st.one_of(
                plain_values,
                st.lists(plain_values, min_size=1, max_size=3),
                st.fixed_dictionaries({"prefix": texts | st.lists(texts, min_size=1, max_size=2)}),
                st.fixed_dictionaries({"suffix": texts}),
                st.fixed_dictionaries({"equals-ignore-case": texts}),
            )
        }
    ),
)


def objects(nested: bool, depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    plain = st.lists(rules, min_size=1, max_size=2)
    below = st.one_of(plain, objects(nested, depth - 1)) if nested and depth else plain
    choices = (
        st.fixed_dictionaries({"$or": st.lists(objects(nested, depth - 1), min_size=2, max_size=2)})
        if depth
        else st.just({})
    )
    plain_keys = keys.filter(lambda key: key != "$or")
    return st.builds(
        lambda one, other: one | other,
        st.dictionaries(plain_keys, below, min_size=1, max_size=2),
        choices | st.just({}),
    )


def policies(scope: str) -> st.SearchStrategy[str]:
    return st.just("{}") | objects(scope == BODY).map(json.dumps)


attributes = st.one_of(
    texts.map(lambda text: ("String", text)),
    numbers.map(lambda number: ("Number", str(number))),
    st.lists(plain_values, max_size=3).map(lambda values: ("String.Array", json.dumps(values))),
    st.just(("String.Array", "not a list")),
    st.just(("Binary", "a")),
)
bodies = st.recursive(
    plain_values | st.just(""),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys | st.just("a"), inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Message, st.dictionaries(keys, attributes, max_size=3), bodies | st.dictionaries(keys, bodies, max_size=3)
)
