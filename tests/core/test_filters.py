"""Filter policies: they mean what a naive reading of them means, and a wrong policy gets an error that says where."""

from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batonq.core.payload import Attribute
from batonq.core.topics.filter_index import FilterIndex
from batonq.core.topics.filters import COMBINATIONS_MAX, parse_filter
from batonq.core.topics.message_values import VALUES_MAX, read_json, read_json_yielding
from batonq.errors import InvalidInput
from tests.core.filter_model import ATTRIBUTES, BODY, Message, messages, naive_matches, policies


def parsed(text: str, scope: str) -> Any:
    try:
        return parse_filter(text, scope)
    except InvalidInput as error:
        assume("too complex" not in error.message)
        raise


def matches(policy: dict[str, Any], scope: str = ATTRIBUTES, body: Any = None, **attributes: tuple[str, str]) -> bool:
    message = Message(attributes, body)
    return parse_filter(json.dumps(policy), scope).matches(message.encoded(), lambda: message.body)


@settings(max_examples=400)
@given(policies(ATTRIBUTES), messages)
def test_a_policy_on_attributes_means_what_it_says(text: str, message: Message) -> None:
    found = parsed(text, ATTRIBUTES).matches(message.encoded(), lambda: message.body)
    assert found == naive_matches(text, ATTRIBUTES, message)


@settings(max_examples=400)
@given(policies(BODY), messages)
def test_a_policy_on_the_body_means_what_it_says(text: str, message: Message) -> None:
    found = parsed(text, BODY).matches(message.encoded(), lambda: message.body)
    assert found == naive_matches(text, BODY, message)


@given(policies(BODY), messages)
def test_a_message_matches_or_there_is_a_reason(text: str, message: Message) -> None:
    reason = parsed(text, BODY).mismatch(message.encoded(), lambda: message.body)
    assert (reason == "") == naive_matches(text, BODY, message)
    assert not reason or reason.endswith(".")


@pytest.mark.parametrize(
    ("rule", "kind", "text", "expected"),
    [
        ("rugby", "String", "rugby", True),
        ("rugby", "String", "Rugby", False),
        ("100", "Number", "100", False),
        (100, "Number", "100", True),
        (100, "Number", "100.000001", True),  # five digits after the decimal point count
        (100, "Number", "100.00001", False),
        (100, "String", "100", False),
        ({"numeric": ["=", 301.5]}, "Number", "3.015e2", True),
        ({"numeric": [">", 0, "<=", 150]}, "Number", "150", True),
        ({"numeric": [">", 0, "<", 150]}, "Number", "150", False),
        ({"numeric": ["<", 0]}, "Number", "-0.5", True),
        ({"numeric": ["<", 0]}, "String", "-0.5", False),
        ({"prefix": "bas"}, "String", "baseball", True),
        ({"suffix": "ball"}, "String", "baseball", True),
        ({"suffix": "ball"}, "String", "balls", False),
        ({"equals-ignore-case": "tennis"}, "String", "TENNIS", True),
        ({"anything-but": ["rugby", "tennis"]}, "String", "rugby", False),
        ({"anything-but": ["rugby", "tennis"]}, "String.Array", '["rugby", "baseball"]', True),
        ({"anything-but": ["rugby", "tennis"]}, "String.Array", '["rugby"]', False),
        ({"anything-but": [100, 500]}, "Number", "101", True),
        ({"anything-but": {"prefix": "order-"}}, "String", "order-1", False),
        ({"anything-but": {"prefix": "order-"}}, "String", "invoice-1", True),
        ({"anything-but": {"suffix": [".tmp", ".bak"]}}, "String", "a.bak", False),
        ({"exists": True}, "String", "x", True),
        ({"exists": False}, "String", "x", False),
        ({"exists": True}, "Binary", "x", False),
        ({"cidr": "10.0.0.0/24"}, "String", "10.0.0.255", True),
        ({"cidr": "10.0.0.0/24"}, "String", "10.0.1.1", False),
        (True, "String.Array", "[true]", True),
        (1, "String.Array", "[true]", False),
        (None, "String.Array", "[null]", True),
    ],
)
def test_each_condition(rule: Any, kind: str, text: str, expected: bool) -> None:
    assert matches({"key": [rule]}, key=(kind, text), other=("String", "x")) is expected


def test_a_missing_attribute_satisfies_only_exists_false_and_only_if_there_is_another_attribute() -> None:
    assert matches({"key": [{"exists": False}]}, other=("String", "x"))
    assert not matches({"key": [{"exists": False}]})
    assert not matches({"key": [{"anything-but": "x"}]}, other=("String", "x"))
    assert matches({"key": [{"anything-but": "x"}, {"exists": False}]}, other=("String", "x"))
    assert matches({})


def test_or_is_an_operator_only_with_two_objects_that_name_keys() -> None:
    both = {"$or": [{"a": ["1"]}, {"b": ["2"]}]}
    assert matches(both, a=("String", "1"))
    assert matches(both, b=("String", "2"))
    assert not matches(both, a=("String", "2"))
    ordinary = {"$or": [{"prefix": "a"}, {"prefix": "b"}]}
    message = Message({"$or": ("String", "apple")}, None)
    assert parse_filter(json.dumps(ordinary), ATTRIBUTES).matches(message.encoded(), lambda: None)


def test_the_body_is_searched_through_lists_and_along_dotted_keys() -> None:
    policy = {"order": {"lines": {"sku": [{"prefix": "x-"}]}}}
    assert matches(policy, BODY, {"order": {"lines": [{"sku": "y-1"}, {"sku": "x-2"}]}})
    assert matches(policy, BODY, {"order": {"lines.sku": [["x-2"]]}})
    assert not matches(policy, BODY, {"order": {"lines": [{"sku": "y-1"}]}})
    assert not matches(policy, BODY, ["order"])
    assert not matches(policy, BODY, None)
    # exists looks at values only, not at objects
    assert not matches({"order": [{"exists": True}]}, BODY, {"order": {"lines": 1}})
    assert matches({"order": [{"exists": False}]}, BODY, {"order": {"lines": 1}})


def test_only_the_first_values_of_a_long_list_count() -> None:
    assert matches({"k": [VALUES_MAX - 1]}, BODY, {"k": [*range(2 * VALUES_MAX)]})
    assert not matches({"k": [VALUES_MAX]}, BODY, {"k": [*range(2 * VALUES_MAX)]})
    assert matches({"k": [7]}, BODY, {"k": [1] * (2 * VALUES_MAX) + [7]})


def test_a_body_that_hides_long_paths_costs_no_more_than_its_size() -> None:
    body = {"k" * 100_000: {str(at): at for at in range(10_000)}}
    assert not matches({"k": {"l": [1]}}, BODY, body)


@pytest.mark.parametrize("text", ['{"a": NaN}', "[1", "", "[" * 100_000, '{"a": ' + "9" * 5_000 + "}"])
def test_a_body_that_is_not_json_is_nothing(text: str) -> None:
    assert read_json(text) is None and read_json_yielding(text.encode()) is None


@given(st.text() | messages.map(lambda message: json.dumps(message.body)))
def test_a_body_is_read_alike_on_a_thread(text: str) -> None:
    body = text.encode("utf-8", "surrogatepass")
    assert repr(read_json_yielding(body)) == repr(read_json(body))


def nested(key: str, levels: int) -> str:
    """A policy with one key per level."""
    policy: Any = ["x"]
    for _ in range(levels):
        policy = {key: policy}
    return json.dumps(policy)


def test_a_deeply_nested_policy_takes_little_memory() -> None:
    index = FilterIndex()
    texts = [nested(f"{number:05}", 149) for number in range(20)]
    tracemalloc.start()
    try:
        for number, text in enumerate(texts):
            index.put(number, parse_filter(text, BODY))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 20 * 200_000


@pytest.mark.parametrize(
    ("text", "scope", "problem"),
    [
        ('{"a": ["b",]}', ATTRIBUTES, "at line 1, column"),
        ("[]", ATTRIBUTES, "must be a JSON object"),
        ('{"a": "b"}', ATTRIBUTES, "at a: a key must have a list"),
        ('{"a": []}', ATTRIBUTES, "at a: an empty list"),
        ('{"a": [["b"]]}', ATTRIBUTES, "at a[0]: match value must be String"),
        ('{"a": ["b", {"starts": "x"}]}', ATTRIBUTES, "at a[1]: unrecognized match type starts; use one of prefix"),
        ('{"a": [{"prefix": 1}]}', ATTRIBUTES, "at a[0].prefix: prefix match pattern must be a string"),
        ('{"a": [{"prefix": ""}]}', ATTRIBUTES, "at a[0].prefix: prefix match pattern must not be empty"),
        ('{"a": [{"prefix": "a", "suffix": "b"}]}', ATTRIBUTES, "at a[0]: only one key"),
        ('{"a": [{"exists": "yes"}]}', ATTRIBUTES, "at a[0].exists: exists match pattern must be"),
        ('{"a": [{"numeric": []}]}', ATTRIBUTES, "at a[0].numeric: a numeric match must be a list"),
        ('{"a": [{"numeric": [">"]}]}', ATTRIBUTES, "at a[0].numeric: a numeric match has one or two pairs"),
        ('{"a": [{"numeric": [">", "1"]}]}', ATTRIBUTES, "at a[0].numeric[1]: value of > must be numeric"),
        ('{"a": [{"numeric": [">", true]}]}', ATTRIBUTES, "at a[0].numeric[1]: value of > must be numeric"),
        ('{"a": [{"numeric": [">", 1e999]}]}', ATTRIBUTES, "at a[0].numeric[1]: the number is too large"),
        ('{"a": [{"numeric": [">", 1%s]}]}' % ("0" * 400), ATTRIBUTES, "at a[0].numeric[1]: the number is too large"),
        ('{"a": [1, -1%s]}' % ("0" * 20), ATTRIBUTES, "at a[1]: the number is too large"),
        (
            '{"a": [{"numeric": [[">"], 1]}]}',
            ATTRIBUTES,
            "at a[0].numeric[1]: a number must follow one of the operators",
        ),
        ('{"a": [{"numeric": ["~", 1]}]}', ATTRIBUTES, "at a[0].numeric[0]: unrecognized numeric range operator ~"),
        ('{"a": [{"numeric": ["<", 1, ">", 0]}]}', ATTRIBUTES, "at a[0].numeric[2]: bad numeric range operator >"),
        ('{"a": [{"numeric": [">", 5, "<", 5]}]}', ATTRIBUTES, "at a[0].numeric: bottom must be less than top"),
        ('{"a": [{"numeric": ["=", 5, "<", 6]}]}', ATTRIBUTES, "at a[0].numeric: too many elements"),
        ('{"a": [{"anything-but": []}]}', ATTRIBUTES, "at a[0].anything-but: an empty list"),
        ('{"a": [{"anything-but": [{"prefix": "x"}]}]}', ATTRIBUTES, "at a[0].anything-but[0]: match value must be"),
        ('{"a": [{"anything-but": {"numeric": [">", 1]}}]}', ATTRIBUTES, "unsupported anything-but pattern numeric"),
        ('{"a": [{"cidr": "10.0.0.0"}]}', ATTRIBUTES, "at a[0].cidr: malformed CIDR, one '/' required"),
        ('{"a": [{"cidr": "10.0.0.1/24"}]}', ATTRIBUTES, "at a[0].cidr: malformed CIDR: 10.0.0.1/24 has host bits set"),
        ('{"a": {"b": ["c"]}}', ATTRIBUTES, "at a: nested keys need the filter policy scope MessageBody"),
        ('{"a": {"b": {}}}', BODY, "at a.b: an object without keys"),
        ('{"$or": [{"a": ["b"]}, {"c": [{"x": 1}]}]}', BODY, "at $or[1].c[0]: unrecognized match type x"),
        ('{"a": ["b"], "a": ["c"]}', ATTRIBUTES, "the key a occurs twice"),
        ('{"a": [Infinity]}', ATTRIBUTES, "Infinity is not a JSON value"),
        ('{"a": [1e999]}', ATTRIBUTES, "at a[0]: the number is too large"),
        (json.dumps({key: ["x"] for key in "abcdef"}), ATTRIBUTES, "more than 5 keys; this one has 6"),
        (json.dumps({"a": [*"0123456789abc"], "b": [*"0123456789ab"]}), ATTRIBUTES, "at b: the policy is too complex"),
        (json.dumps({"a": {"b": {"c": [str(at) for at in range(51)]}}}), BODY, "at a.b.c: the policy is too complex"),
        (json.dumps({"$or": [{"a": [at]} for at in range(151)]}), BODY, "at $or: the policy is too complex"),
        (json.dumps({"a" * 257: ["x"]}), ATTRIBUTES, "longer than 256 characters"),
        ('{"a": ["\\ud800"]}', ATTRIBUTES, "is not a character"),
        ('{"\\ud800": ["a"]}', BODY, "is not a character"),
        (nested("a" * 250, 5), BODY, "longer than 1024 characters together"),
        (json.dumps({"a": ["x" * 300_000]}), ATTRIBUTES, "larger than 262144 bytes"),
        ("[" * 100_000, ATTRIBUTES, "nested too deep"),
        ('{"a": ["b"]}', "Body", "Body is not a scope"),
    ],
)
def test_a_wrong_policy_says_where(text: str, scope: str, problem: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_filter(text, scope)
    assert problem in caught.value.message
    assert len(caught.value.message) < 400


def test_the_documented_combinations_are_allowed() -> None:
    """3 x 4 x 2 x 3 = 72, the example of SNS; and exactly 150."""
    values = {"key_a": {"key_b": {"key_c": [*"1234"]}}, "key_d": {"key_e": [*"123"]}}
    assert len(parse_filter(json.dumps(values), BODY).alternatives) == 1
    [[term]] = parse_filter(json.dumps({"a": [*range(COMBINATIONS_MAX)]}), ATTRIBUTES).alternatives
    assert len(term.conditions) == COMBINATIONS_MAX


@settings(max_examples=200)
@given(
    st.text(max_size=40)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["a", "$or", "numeric", "prefix", "anything-but"]), inner, max_size=2)
        ),
        max_leaves=12,
    ).map(json.dumps)
)
def test_any_text_is_a_policy_or_gets_an_error(text: str) -> None:
    for scope in (ATTRIBUTES, BODY):
        with suppress(InvalidInput):
            found = parse_filter(text, scope)
            assert found.matches({"a": Attribute("a", "String", b"x", False)}, lambda: {"a": 1}) in (True, False)
