"""What a queue's access policy allows to other accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batonq.attribute_formats.access_policy import is_texts, parse_policy
from batonq.attribute_formats.arns import QueueName
from batonq.attribute_formats.wildcards import Wildcards

# The actions that AddPermission accepts.
GRANTABLE = (
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ReceiveMessage",
    "SendMessage",
)
# The actions that a policy can allow another account. Every other action is reserved for the queue's owner, whatever
# the policy says. These are the actions to which SQS applies cross-account permissions.
OPEN_TO_OTHERS = frozenset({*GRANTABLE[1:], "ListDeadLetterSourceQueues", "PurgeQueue"})


def allows_sends(policy: str, account: str, queue: QueueName) -> bool:
    """Whether the policy of a queue allows another account to send to it."""
    return allows(policy, account, "SendMessage", queue)


def allows(policy: str, account: str, action: str, queue: QueueName) -> bool:
    """Whether the (valid or empty) policy of a queue allows `action`, such as `SendMessage`, to another account.

    Conditions are not evaluated and count against the caller: an Allow with a condition grants nothing, a Deny with a
    condition refuses.
    """
    if action not in OPEN_TO_OTHERS:
        return False
    granted = False
    for entry in parse_policy(policy)["Statement"] if policy else ():
        denies = entry["Effect"] == "Deny"
        if (
            not _names_account(entry, account, denies)
            or not _names_action(entry, action, denies)
            or not _names_queue(entry, queue, denies)
        ):
            continue
        if denies:
            return False
        granted = granted or not entry.get("Condition")
    return granted


def _names_account(entry: Mapping[str, Any], account: str, denies: bool) -> bool:
    if "Principal" not in entry:
        return denies  # NotPrincipal: treated as a match only in a Deny
    principal = entry["Principal"]
    named = principal.get("AWS", ()) if isinstance(principal, dict) else principal
    return any(name in ("*", account) or _account_of(name) == account for name in _texts(named))


def _account_of(principal: str) -> str:
    """The account whose root an ARN such as `arn:aws:iam::123456789012:root` names."""
    parts = principal.split(":")
    return parts[4] if len(parts) == 6 and parts[2] == "iam" and parts[5] == "root" else ""


def _names_action(entry: Mapping[str, Any], action: str, denies: bool) -> bool:
    if "Action" not in entry:
        return denies
    return Wildcards(map(str.lower, _texts(entry["Action"]))).match(f"sqs:{action.lower()}")


def _names_queue(entry: Mapping[str, Any], queue: QueueName, denies: bool) -> bool:
    """Whether a statement is about a queue. Without a Resource it is about the queue that has the policy."""
    if "NotResource" in entry:
        return denies
    resource = entry.get("Resource", "*")
    if not is_texts(resource):
        return denies  # stored by a release that did not check the Resource
    return any(_means(arn, queue) for arn in _texts(resource))


def _means(arn: str, queue: QueueName) -> bool:
    """Whether an ARN, which may contain `*` and `?`, names a queue. Partition and region are not compared."""
    parts = arn.split(":")
    if len(parts) < 6 and parts[-1].endswith("*"):  # a star at the end also matches the parts that follow
        parts += ["*"] * (6 - len(parts))
    if len(parts) != 6:
        return False
    scheme, _, service, _, account, name = parts
    pairs = ((scheme, "arn"), (service, "sqs"), (account, queue.account), (name, queue.name))
    return all(Wildcards([pattern]).match(text) for pattern, text in pairs)


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)
