"""A queue's attributes: which may be set, their defaults, and the policy that a shard gets.

The attributes are declared in batonq/queue_attributes.py. `effective` adds the defaults to the attributes that were
set, `readings` gives the attributes that are counted rather than set, and `to_policy` builds the policy for a shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from batonq.attribute_formats import redrive_policy
from batonq.attribute_formats.access_policy import check_policy
from batonq.attribute_formats.arns import QueueName
from batonq.attribute_formats.combinations import add_key_defaults, check_throughput, settle_encryption
from batonq.core.catalog.names import is_text, is_word
from batonq.core.commands import Counters
from batonq.core.policy import SECOND_MS, QueuePolicy
from batonq.core.retry import parse_retry
from batonq.errors import InvalidAttributeName, InvalidAttributeValue
from batonq.queue_attributes import (
    ACCESS_POLICY,
    ATTRIBUTES,
    CONTENT_DEDUPLICATION,
    DEAD_LETTER_POLICY,
    DEAD_LETTER_SOURCES,
    DEDUPLICATION_SCOPE,
    FIFO,
    LABEL_LENGTH_MAX,
    OLDEST_AGE,
    OLDEST_VISIBLE_AGE,
    PER_GROUP,
    RETRY_POLICY,
    SPREAD,
    SPREAD_MAX,
    Access,
    QueueAttribute,
    ValueKind,
    mention,
)

TEXT_BYTES_MAX = 8192
DIVIDED = tuple(row.name for row in ATTRIBUTES.values() if row.divided)  # limits divided among a queue's shards
JSON_CHECKS: dict[str, Callable[[str], object]] = {
    DEAD_LETTER_POLICY: redrive_policy.parse_redrive_policy,
    DEAD_LETTER_SOURCES: redrive_policy.check_redrive_allow_policy,
    ACCESS_POLICY: check_policy,
    RETRY_POLICY: parse_retry,
}
_EMPTIED_BY_AN_EMPTY_MAP = (DEAD_LETTER_POLICY, DEAD_LETTER_SOURCES)  # an empty map removes them, like an empty text

_ALWAYS = {row.name: row.default for row in ATTRIBUTES.values() if row.default is not None and not row.fifo_only}
_FIFO_ALWAYS = {row.name: row.default for row in ATTRIBUTES.values() if row.default is not None}
_POLICY_ROWS = {row.name: row for row in ATTRIBUTES.values() if row.policy}
_COUNTED_ROWS = tuple(row for row in ATTRIBUTES.values() if row.counter)

ResolveDeadLetterQueue = Callable[[QueueName], tuple[int, int, str]]  # number, first shard, spread


def is_fifo(attributes: Mapping[str, str]) -> bool:
    return attributes.get(FIFO) == "true"


def check_name(name: str) -> QueueAttribute:
    """The row of an attribute; raises InvalidAttributeName if there is none."""
    attribute = ATTRIBUTES.get(name)
    if attribute is None:
        raise _unknown(name)
    return attribute


def validate(
    changes: Mapping[str, str], *, fifo: bool, creating: bool, current: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The attributes of a queue after `changes` to `current`; an empty value removes an attribute.

    Raises InvalidAttributeName, InvalidAttributeValue or InvalidInput. The catalog checks whether a dead-letter queue
    exists.
    """
    canonical = {name: _canonical(name, value, fifo=fifo, creating=creating) for name, value in changes.items()}
    result = {**(current or {}), **canonical}
    settle_encryption(canonical, result)
    result = {name: value for name, value in result.items() if value != ""}
    check_throughput(result)
    _check_spread(result, fifo)
    return result


def _check_spread(values: Mapping[str, str], fifo: bool) -> None:
    """Check that settings for the whole queue also work on each of its shards."""
    spread = int(values.get(SPREAD, "1"))
    if spread > 1 and fifo and values.get(DEDUPLICATION_SCOPE) != PER_GROUP:
        raise InvalidAttributeValue(
            f"{mention(SPREAD)} above 1 needs {mention(DEDUPLICATION_SCOPE, PER_GROUP)} on a FIFO queue. Deduplication "
            "for the whole queue works only on one shard."
        )
    for name in DIVIDED:
        limit = int(values.get(name, "0"))
        if limit and limit < spread:
            raise InvalidAttributeValue(
                f"{mention(name)} is divided among the queue's shards, so it must be at least as large as "
                f"{mention(SPREAD)}."
            )


def _canonical(name: str, value: str, *, fifo: bool, creating: bool) -> str:
    """The value of one attribute as stored; empty if the attribute is to be removed."""
    attribute = check_name(name)
    if attribute.access is Access.READ_ONLY:
        raise _unknown(name)
    if attribute.access is Access.AT_CREATION:
        return _queue_type(name, value, fifo=fifo, creating=creating)
    if attribute.fifo_only and not fifo:
        if name == CONTENT_DEDUPLICATION:
            raise _unknown(name)
        raise InvalidAttributeName(f"You can specify the {mention(name)} only when {mention(FIFO)} is set to true.")
    if value == "" and attribute.removable:
        return ""
    if attribute.kind is ValueKind.INTEGER:
        if not (value.isascii() and value.isdigit() and len(value) <= 18):
            raise _refuse(attribute)
        number = int(value)
        if not attribute.low <= number <= attribute.high:
            raise _refuse(attribute)
        return str(number)
    if attribute.kind is ValueKind.BOOLEAN:
        value = value.lower()
    if attribute.choices and value not in attribute.choices:
        raise _refuse(attribute)
    if attribute.kind is ValueKind.LABEL and not is_word(value, LABEL_LENGTH_MAX):
        raise _refuse(attribute)
    if not is_text(value, TEXT_BYTES_MAX):
        raise InvalidAttributeValue(
            f"Invalid value for the parameter {mention(name)}. "
            f"Reason: Must be at most {TEXT_BYTES_MAX} bytes of text without control characters."
        )
    if attribute.kind is ValueKind.TEXT and attribute.high and len(value) > attribute.high:
        raise _refuse(attribute)
    if attribute.kind is ValueKind.JSON:
        if name in _EMPTIED_BY_AN_EMPTY_MAP and redrive_policy.parse_json(value) == {}:
            return ""
        JSON_CHECKS[name](value)
    return value


def _refuse(attribute: QueueAttribute) -> InvalidAttributeValue:
    return InvalidAttributeValue(
        f"Invalid value for the parameter {mention(attribute.name)}. Reason: Must be {attribute.allowed}."
    )


def _unknown(name: str) -> InvalidAttributeName:
    return InvalidAttributeName(f"Unknown Attribute {name[:256]}.")


def _queue_type(name: str, value: str, *, fifo: bool, creating: bool) -> str:
    """Check FIFO, which cannot be changed after creation and does not exist for a standard queue."""
    wanted = value.lower()
    if wanted != "true" if creating else not fifo:
        raise _unknown(name)
    if wanted != "true":
        raise InvalidAttributeValue(
            f"Invalid value for the parameter {mention(name)}. Reason: Modifying queue type is not supported."
        )
    return "true" if fifo else ""


def effective(attributes: Mapping[str, str]) -> dict[str, str]:
    """The attributes that are set, and the defaults."""
    result = dict(_FIFO_ALWAYS if is_fifo(attributes) else _ALWAYS)
    result.update(attributes)
    add_key_defaults(result)
    return result


def readings(counters: Counters, now_ms: int) -> dict[str, str]:
    """The read-only attributes that come from a queue's counters."""
    values = {row.name: str(getattr(counters, row.counter)) for row in _COUNTED_ROWS}
    for name, sent_ms in ((OLDEST_AGE, counters.oldest_sent_ms), (OLDEST_VISIBLE_AGE, counters.oldest_visible_ms)):
        values[name] = str(max(0, now_ms - sent_ms) // SECOND_MS if sent_ms else 0)
    return values


def first_difference(passed: Mapping[str, str], existing: Mapping[str, str]) -> str | None:
    """The first attribute of a request to create a queue that has a different value in the existing queue.

    Only passed attributes count, defaults are values too, and two JSON texts with the same meaning are equal.
    """
    have = effective(existing)
    fifo = is_fifo(existing)
    defaults = _FIFO_ALWAYS if fifo else _ALWAYS
    for name, value in passed.items():
        canonical = _canonical(name, value, fifo=fifo, creating=True) or defaults.get(name, "")
        there = have.get(name, "")
        same = canonical == there
        if not same and ATTRIBUTES[name].kind is ValueKind.JSON and canonical and there:
            same = redrive_policy.parse_json(canonical) == redrive_policy.parse_json(there)
        if not same:
            return name
    return None


def to_policy(
    queue_number: int,
    account: str,
    name: str,
    version: int,
    attributes: Mapping[str, str],
    resolve_dlq: ResolveDeadLetterQueue,
    shards: int = 1,
    spread: str = "",
) -> QueuePolicy:
    """The policy for a shard. With several shards, each gets its part of the limits.

    `resolve_dlq` returns number, shard and spread of the dead-letter queue.
    """
    fields = dict(_default_fields(shards))
    for attribute, value in attributes.items():
        row = _POLICY_ROWS.get(attribute)
        if row is not None:
            fields[row.policy] = _policy_value(row, value, shards)
    if attributes.get(DEAD_LETTER_POLICY):
        target = redrive_policy.parse_redrive_policy(attributes[DEAD_LETTER_POLICY])
        fields["max_receives"] = target.max_receives
        dead_letter = resolve_dlq(target.target)
        fields["dead_letter_queue"], fields["dead_letter_shard"], fields["dead_letter_spread"] = dead_letter
    return QueuePolicy(queue=queue_number, tenant=account, name=name, version=version, spread=spread, **fields)


@lru_cache(maxsize=2 * SPREAD_MAX)
def _default_fields(shards: int) -> dict[str, Any]:
    """The fields of a policy without any attribute set."""
    return {row.policy: _policy_value(row, row.default or "", shards) for row in _POLICY_ROWS.values()}


def _policy_value(row: QueueAttribute, value: str, shards: int) -> Any:
    """The value of an attribute in the policy."""
    if row.word:
        return value == row.word
    if row.kind is ValueKind.BOOLEAN:
        return value == "true"
    if row.kind is not ValueKind.INTEGER:
        return "" if value == row.unset else value
    number = int(value)
    if row.divided and number:
        return max(number // shards, 1)
    return number * SECOND_MS if row.policy.endswith("_ms") else number
