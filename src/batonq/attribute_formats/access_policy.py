"""The access policy of a queue, in the format of AWS: checked, and changed statement by statement.

Permissions are stored only in the queue's policy. A permission's label is its statement's `Sid`.
"""

from __future__ import annotations

import json
from typing import Any

from batonq.attribute_formats.redrive_policy import parse_json
from batonq.errors import InvalidAttributeValue, InvalidInput, OverLimit

STATEMENTS_MAX = 20
LABEL_LENGTH_MAX = 80

Statement = dict[str, Any]


def check_policy(text: str) -> None:
    """Raise InvalidAttributeValue unless `text` is an access policy."""
    for entry in parse_policy(text)["Statement"]:
        if "Resource" in entry and not is_texts(entry["Resource"]):
            raise _refuse("The Resource of a statement must be an ARN or a list of ARNs.")


def parse_policy(text: str) -> dict[str, Any]:
    """The policy, with a list of statements. Raises InvalidAttributeValue."""
    policy = parse_json(text)
    if not isinstance(policy, dict):
        raise _refuse("The policy must be a JSON object.")
    statements = policy.get("Statement")
    if isinstance(statements, dict):
        policy["Statement"] = statements = [statements]
    if not isinstance(statements, list) or not 1 <= len(statements) <= STATEMENTS_MAX:
        raise _refuse(f"The policy must have 1 to {STATEMENTS_MAX} statements.")
    for statement in statements:
        if not isinstance(statement, dict) or statement.get("Effect") not in ("Allow", "Deny"):
            raise _refuse("Each statement must be a JSON object with the Effect Allow or Deny.")
        if not is_texts(statement.get("Action", statement.get("NotAction"))):
            raise _refuse("Each statement must have an Action: a string or a list of strings.")
        principal = statement.get("Principal", statement.get("NotPrincipal"))
        named = list(principal.values()) if isinstance(principal, dict) else [principal]
        if not all(map(is_texts, named)):
            raise _refuse("Each statement must have a Principal.")
    return policy


def is_texts(value: object) -> bool:
    """Whether the value is a string or a list of strings."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _refuse(reason: str) -> InvalidAttributeValue:
    return InvalidAttributeValue(f"Invalid value for the parameter Policy. Reason: {reason}")


def labels(policy: str) -> dict[str, Statement]:
    """The labelled statements of a (valid or empty) policy."""
    if not policy:
        return {}
    return {entry["Sid"]: entry for entry in parse_policy(policy)["Statement"] if isinstance(entry.get("Sid"), str)}


def with_statement(policy: str, arn: str, label: str, new: Statement) -> str:
    """The policy with one more statement. Raises InvalidInput if the label exists already."""
    if label in labels(policy):
        raise InvalidInput(f"Value {label} for parameter Label is invalid. Reason: Already exists.")
    empty: dict[str, Any] = {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
    document = parse_policy(policy) if policy else empty
    if len(document["Statement"]) >= STATEMENTS_MAX:
        raise OverLimit(f"A policy can have at most {STATEMENTS_MAX} statements. Remove one first.")
    document["Statement"].append({**new, "Sid": label})
    return json.dumps(document, separators=(",", ":"))


def without_statement(policy: str, label: str) -> str:
    """The policy without one statement; empty if it was the last. Raises InvalidInput for an unknown label."""
    if label not in labels(policy):
        raise InvalidInput(
            f"Value {label[:LABEL_LENGTH_MAX]} for parameter Label is invalid. Reason: can't find label."
        )
    document = parse_policy(policy)
    document["Statement"] = [entry for entry in document["Statement"] if entry.get("Sid") != label]
    return json.dumps(document, separators=(",", ":")) if document["Statement"] else ""
