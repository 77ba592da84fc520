"""Filter policies of subscriptions, as SNS defines them: parsed and checked once, then matched against messages.

A policy is a JSON object. Every key must match (AND), a key matches if one condition of its list does (OR), and `$or`
holds a list of objects of which one must match. In the scope `MessageAttributes` a key is the name of a message
attribute; in the scope `MessageBody` it is a key of the JSON body, and keys may be nested.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any, NamedTuple, NoReturn, TypeAlias

from batonq.core.payload import Attribute
from batonq.core.topics.conditions import (
    HIGHEST,
    LOWEST,
    AnythingBut,
    Cidr,
    Condition,
    EqualsIgnoreCase,
    Exact,
    Exists,
    Prefix,
    Range,
    Suffix,
)
from batonq.core.topics.message_values import AttributeValues, BodyValues, Paths, Scalar, parents_of, scalar
from batonq.errors import InvalidInput

ATTRIBUTES = "MessageAttributes"
BODY = "MessageBody"
SCOPES = (ATTRIBUTES, BODY)
POLICY_BYTES_MAX = 256 * 1024
KEYS_MAX = 5
KEY_LENGTH_MAX = 256
PATH_LENGTH_MAX = 1_024  # of nested keys joined with dots; the index stores the path of every level
COMBINATIONS_MAX = 150
OBJECT_KEYS_MAX = 150  # of a nested object or a choice of $or
_OR = "$or"
_TEXT_OPERATORS = ("prefix", "suffix", "equals-ignore-case")
_OPERATORS = (*_TEXT_OPERATORS, "anything-but", "numeric", "exists", "cidr")
_LOWER = {">": 1, ">=": 0}
_UPPER = {"<": -1, "<=": 0}
_INTEGER_MAX = (1 << 63) - 1
_SHOWN_LENGTH_MAX = 80


class Term(NamedTuple):
    """One key of a policy and its conditions, of which one must hold."""

    path: str
    conditions: tuple[Condition, ...]

    def holds(self, values: AttributeValues | BodyValues) -> bool:
        found = values.at(self.path)
        return any(condition.holds(found) for condition in self.conditions)


Alternative: TypeAlias = tuple[Term, ...]  # all of its terms must hold


@dataclass(slots=True, frozen=True)
class Filter:
    """A checked filter policy. It matches if one of its alternatives does; a policy without keys matches everything."""

    scope: str
    alternatives: tuple[Alternative, ...]
    paths: Paths = field(init=False)

    def __post_init__(self) -> None:
        named = frozenset(term.path for terms in self.alternatives for term in terms)
        parents = frozenset(parent for path in named for parent in parents_of(path)) if self.scope == BODY else ()
        object.__setattr__(self, "paths", Paths(named, parents))

    @property
    def matches_all(self) -> bool:
        return not self.alternatives

    def matches(self, attributes: Mapping[str, Attribute], body: Callable[[], Any]) -> bool:
        """Whether a message matches. `body` returns the parsed JSON body, or None if the body is not JSON."""
        return not self.mismatch(attributes, body)

    def mismatch(self, attributes: Mapping[str, Attribute], body: Callable[[], Any]) -> str:
        """Why a message does not match, as a sentence; empty if it matches."""
        if self.matches_all:
            return ""
        values: AttributeValues | BodyValues
        if self.scope == ATTRIBUTES:
            values = AttributeValues(attributes)
            if not values:
                return "The message has no attributes that a filter can match."
        else:
            parsed = body()
            if not isinstance(parsed, dict):
                return "The message body is not a JSON object."
            values = BodyValues(parsed, self.paths)
        failed = [next((term.path for term in terms if not term.holds(values)), None) for terms in self.alternatives]
        if None in failed:
            return ""
        what = "attribute" if self.scope == ATTRIBUTES else "key"
        names = [*dict.fromkeys(str(path) for path in failed)]
        if len(names) == 1:
            state = "does not match" if values.at(names[0]) else "is missing"
            return f"The {what} {_shown(names[0])} {state}."
        return f"No alternative of $or matches: the {what}s {', '.join(map(_shown, names[:10]))} do not match."


def parse_filter(text: str, scope: str) -> Filter:
    """Read and check a filter policy. Raises InvalidInput, which names the place of the first mistake."""
    if scope not in SCOPES:
        raise InvalidInput(f"FilterPolicyScope: {_shown(scope)} is not a scope. Use {ATTRIBUTES} or {BODY}.")
    if len(text.encode("utf-8", "surrogatepass")) > POLICY_BYTES_MAX:
        raise InvalidInput(f"FilterPolicy: the policy is larger than {POLICY_BYTES_MAX} bytes.")
    try:
        policy = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
        if "\\u" in text:  # half of a surrogate pair, which no other reader of JSON accepts
            json.dumps(policy, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"FilterPolicy: the policy is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
        ) from None
    except RecursionError:
        raise InvalidInput("FilterPolicy: the policy is nested too deep.") from None
    except UnicodeEncodeError:
        raise InvalidInput("FilterPolicy: an escape such as \\ud800 in the policy is not a character.") from None
    except ValueError as error:  # from the hooks, or a number with too many digits
        raise InvalidInput(f"FilterPolicy: {error}") from None
    if not isinstance(policy, dict):
        raise InvalidInput('FilterPolicy: the policy must be a JSON object, such as {"store": ["north"]}.')
    if len(policy) > KEYS_MAX:
        raise InvalidInput(
            f"FilterPolicy: a policy can not have more than {KEYS_MAX} keys; this one has {len(policy)}."
        )
    if not policy:
        return Filter(scope, ())
    alternatives, _ = _read_object(policy, "", "", 1, [()], 1, nested=scope == BODY)
    return Filter(scope, tuple(alternatives))


def _read_object(
    policy: dict[str, Any],
    prefix: str,
    place: str,
    depth: int,
    begun: list[Alternative],
    combinations: int,
    nested: bool,
) -> tuple[list[Alternative], int]:
    """Extend each alternative that has begun with the keys of this object, and count the combinations of values."""
    if not policy:
        _refuse(place, "an object without keys is not allowed.")
    if len(policy) > OBJECT_KEYS_MAX or depth > COMBINATIONS_MAX:
        _refuse(place, "the policy is too complex: it has too many keys or levels.")
    for key, value in policy.items():
        here = f"{place}.{key}" if place else key
        if len(key) > KEY_LENGTH_MAX:
            _refuse(here, f"a key is longer than {KEY_LENGTH_MAX} characters.")
        if len(prefix) + len(key) > PATH_LENGTH_MAX:
            _refuse(here, f"a nested key and the keys above it are longer than {PATH_LENGTH_MAX} characters together.")
        if key == _OR and _is_or(value):
            branches: list[Alternative] = []
            total = 0
            for at, choice in enumerate(value):
                more, count = _read_object(choice, prefix, f"{here}[{at}]", depth, begun, combinations, nested)
                branches += more
                total += count
                _check_combinations(total, here)
            begun, combinations = branches, total
        elif isinstance(value, dict):
            if not nested:
                _refuse(here, "nested keys need the filter policy scope MessageBody; write a list of values here.")
            begun, combinations = _read_object(value, f"{prefix}{key}.", here, depth + 1, begun, combinations, nested)
        elif isinstance(value, list):
            term = Term(prefix + key, _conditions(value, here))
            combinations *= len(value) * depth
            _check_combinations(combinations, here)
            begun = [(*terms, term) for terms in begun]
        else:
            _refuse(here, 'a key must have a list of values or an object, such as ["value"].')
    return begun, combinations


def _check_combinations(combinations: int, place: str) -> None:
    """Check at every step: the alternatives are built while the policy is read, and `$or` lists multiply."""
    if combinations > COMBINATIONS_MAX:
        _refuse(
            place,
            f"the policy is too complex: it has more than {COMBINATIONS_MAX} combinations of values. Multiply the "
            "number of values of each key by the key's nesting level to count them.",
        )


def _is_or(value: Any) -> bool:
    """Whether this value makes `$or` an operator. SNS takes any other `$or` as an ordinary key."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(choice, dict) for choice in value):
        return False
    return not any(key in _OPERATORS for choice in value for key in choice)


def _conditions(rules: list[Any], place: str) -> tuple[Condition, ...]:
    if not rules:
        _refuse(place, "an empty list is not allowed: no message could match.")
    return tuple(_condition(rule, f"{place}[{at}]") for at, rule in enumerate(rules))


def _condition(rule: Any, place: str) -> Condition:
    if not isinstance(rule, dict):
        return Exact(_value(rule, place))
    if len(rule) != 1:
        _refuse(place, f"only one key is allowed in a match expression, not {len(rule)}.")
    [(operator, operand)] = rule.items()
    if operator not in _OPERATORS:
        _refuse(place, f"unrecognized match type {_shown(operator)}; use one of {', '.join(_OPERATORS)}.")
    here = f"{place}.{operator}"
    if operator in _TEXT_OPERATORS:
        text = _text(operand, operator, here)
        if operator == "prefix":
            return Prefix(text)
        return Suffix(text) if operator == "suffix" else EqualsIgnoreCase(text.casefold())
    if operator == "exists":
        if not isinstance(operand, bool):
            _refuse(here, "exists match pattern must be either true or false.")
        return Exists(operand)
    if operator == "numeric":
        return _numeric(operand, here)
    if operator == "cidr":
        return _cidr(operand, here)
    return _anything_but(operand, here)


def _value(value: Any, place: str) -> Scalar:
    if isinstance(value, list | dict):
        _refuse(place, "match value must be String, number, true, false, or null.")
    if isinstance(value, int | float):
        _check_number(value, place)
    return scalar(value)


def _check_number(number: float, place: str) -> None:
    if abs(number) > (_INTEGER_MAX if isinstance(number, int) else sys.float_info.max):
        _refuse(place, "the number is too large.")


def _text(value: Any, operator: str, place: str) -> str:
    if not isinstance(value, str):
        _refuse(place, f"{operator} match pattern must be a string.")
    if not value:
        _refuse(place, f"{operator} match pattern must not be empty.")
    return value


def _anything_but(operand: Any, place: str) -> AnythingBut:
    if isinstance(operand, dict):
        if len(operand) != 1:
            _refuse(place, f"only one key is allowed in a match expression, not {len(operand)}.")
        [(operator, inner)] = operand.items()
        if operator not in _TEXT_OPERATORS:
            _refuse(place, f"unsupported anything-but pattern {_shown(operator)}; use {', '.join(_TEXT_OPERATORS)}.")
        here = f"{place}.{operator}"
        given = inner if isinstance(inner, list) else [inner]
        if not given:
            _refuse(here, "an empty list is not allowed.")
        texts = tuple(_text(text, operator, here) for text in given)
        if operator == "prefix":
            return AnythingBut(prefixes=texts)
        if operator == "suffix":
            return AnythingBut(suffixes=texts)
        return AnythingBut(folded=frozenset(text.casefold() for text in texts))
    if not isinstance(operand, list):
        return AnythingBut(frozenset((_value(operand, place),)))
    if not operand:
        _refuse(place, "an empty list is not allowed.")
    return AnythingBut(frozenset(_value(value, f"{place}[{at}]") for at, value in enumerate(operand)))


def _numeric(operand: Any, place: str) -> Range | Exact:
    if not isinstance(operand, list) or not operand:
        _refuse(place, 'a numeric match must be a list such as [">", 0, "<=", 150].')
    if len(operand) % 2 or len(operand) > 4:
        _refuse(place, "a numeric match has one or two pairs of an operator and a number.")
    pairs = [(operand[at], _bound(operand[at : at + 2], f"{place}[{at + 1}]")) for at in range(0, len(operand), 2)]
    first, number = pairs[0]
    if first == "=":
        if len(pairs) > 1:
            _refuse(place, "too many elements in numeric expression: = stands alone.")
        return Exact(scalar(number))
    low, high = LOWEST, HIGHEST
    for at, (operator, end) in enumerate(pairs):
        here = f"{place}[{2 * at}]"
        if operator in _LOWER and at == 0:
            low = (end, _LOWER[operator])
        elif operator in _UPPER and (at == 0 or first in _LOWER):
            high = (end, _UPPER[operator])
        elif at == 0:
            _refuse(here, f"unrecognized numeric range operator {_shown(str(operator))}; use =, <, <=, > or >=.")
        else:
            _refuse(
                here, f"bad numeric range operator {_shown(str(operator))}: write the lower end first, then < or <=."
            )
    if len(pairs) == 2 and low[0] >= high[0]:
        _refuse(place, "bottom must be less than top.")
    return Range(low, high)


def _bound(pair: Sequence[Any], place: str) -> float:
    operator, number = pair
    if not isinstance(operator, str):
        _refuse(place, "a number must follow one of the operators =, <, <=, > and >=.")
    if isinstance(number, bool) or not isinstance(number, int | float):
        _refuse(place, f"value of {_shown(operator)} must be numeric.")
    _check_number(number, place)
    return round(number, 5) if isinstance(number, float) else number


def _cidr(operand: Any, place: str) -> Cidr:
    if not isinstance(operand, str):
        _refuse(place, "cidr match pattern must be a string.")
    if operand.count("/") != 1:
        _refuse(place, "malformed CIDR, one '/' required, as in 10.0.0.0/24.")
    try:
        return Cidr(ip_network(operand))
    except ValueError as error:
        _refuse(place, f"malformed CIDR: {error}.")


def _refuse(place: str, problem: str) -> NoReturn:
    raise InvalidInput(f"FilterPolicy: at {_shown(place)}: {problem}")


def _shown(text: str) -> str:
    text = text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}…"
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {_shown(twice)} occurs twice in one object.")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value.")
