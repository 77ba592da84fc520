"""Access policies: AddPermission, RemovePermission, and what a policy lets another account do."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from batonq.api.sqs.permissions import statement
from batonq.attribute_formats import permissions
from batonq.attribute_formats.access_policy import check_policy, labels, with_statement, without_statement
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.errors import InvalidAttributeValue, InvalidInput, OverLimit

OTHER = "111111111111"
QUEUE = QueueName("000000000000", "q")
ARN = queue_arn(*QUEUE)


def entry(
    label: str = "share", actions: tuple[str, ...] = ("SendMessage",), accounts: tuple[str, ...] = (OTHER,)
) -> str:
    return with_statement("", ARN, label, statement(label, accounts, actions, ARN))


def test_add_permission_makes_a_policy_as_sqs_does() -> None:
    assert json.loads(entry()) == {
        "Version": "2008-10-17",
        "Id": f"{ARN}/SQSDefaultPolicy",
        "Statement": [
            {
                "Sid": "share",
                "Effect": "Allow",
                "Principal": {"AWS": "arn:aws:iam::111111111111:root"},
                "Action": "SQS:SendMessage",
                "Resource": ARN,
            }
        ],
    }


def test_several_actions_and_accounts_are_lists() -> None:
    made = statement("x", (OTHER, "222222222222"), ("SendMessage", "ReceiveMessage"), ARN)
    assert made["Principal"]["AWS"] == ["arn:aws:iam::111111111111:root", "arn:aws:iam::222222222222:root"]
    assert made["Action"] == ["SQS:SendMessage", "SQS:ReceiveMessage"]


def test_permissions_are_added_and_removed_by_label() -> None:
    both = with_statement(entry("a"), ARN, "b", statement("b", (OTHER,), ("ReceiveMessage",), ARN))
    check_policy(both)
    assert list(labels(both)) == ["a", "b"]
    with pytest.raises(InvalidInput, match=r"^Value a for parameter Label is invalid\. Reason: Already exists\.$"):
        with_statement(both, ARN, "a", statement("a", (OTHER,), ("*",), ARN))
    only_b = without_statement(both, "a")
    assert list(labels(only_b)) == ["b"]
    with pytest.raises(InvalidInput, match="can't find label"):
        without_statement(only_b, "a")
    assert without_statement(only_b, "b") == ""
    with pytest.raises(InvalidInput, match="can't find label"):
        without_statement("", "b")


def test_statements_that_are_refused() -> None:
    with pytest.raises(InvalidInput, match="parameter Label is invalid"):
        statement("two words", (OTHER,), ("SendMessage",), ARN)
    for accounts in ((), ("12",), ("x" * 12,), ("١" * 12,)):
        with pytest.raises(InvalidInput, match="parameter PrincipalId is invalid"):
            statement("a", accounts, ("SendMessage",), ARN)
    with pytest.raises(InvalidInput, match=r"^Value SQS:DeleteQueue for parameter ActionName is invalid\."):
        statement("a", (OTHER,), ("DeleteQueue",), ARN)
    with pytest.raises(InvalidInput, match="must contain the parameter Actions"):
        statement("a", (OTHER,), (), ARN)
    with pytest.raises(OverLimit, match=r"^8 Actions were found, maximum allowed is 7"):
        statement("a", (OTHER,), ("SendMessage",) * 8, ARN)
    with pytest.raises(OverLimit, match="51 AWSAccountIds"):
        statement("a", (OTHER,) * 51, ("SendMessage",), ARN)


def test_a_policy_has_at_most_twenty_statements() -> None:
    policy = ""
    for number in range(20):
        policy = with_statement(policy, ARN, f"s{number}", statement("x", (OTHER,), ("SendMessage",), ARN))
    with pytest.raises(OverLimit):
        with_statement(policy, ARN, "more", statement("x", (OTHER,), ("SendMessage",), ARN))


@pytest.mark.parametrize(
    "bad",
    [
        "x",
        "[]",
        "{}",
        '{"Statement":[]}',
        '{"Statement":[1]}',
        '{"Statement":[{"Effect":"Maybe","Action":"*","Principal":"*"}]}',
        '{"Statement":[{"Effect":"Allow","Principal":"*"}]}',
        '{"Statement":[{"Effect":"Allow","Action":"*"}]}',
        '{"Statement":[{"Effect":"Allow","Action":[1],"Principal":"*"}]}',
        '{"Statement":[{"Effect":"Allow","Action":"*","Principal":{"AWS":5}}]}',
        '{"Statement":[{"Effect":"Allow","Action":"*","Principal":[5]}]}',
        '{"Statement":[{"Effect":"Allow","Action":"*","Principal":"*","Resource":5}]}',
        '{"Statement":[{"Effect":"Allow","Action":"*","Principal":"*","Resource":[{}]}]}',
    ],
)
def test_policies_that_are_refused(bad: str) -> None:
    with pytest.raises(InvalidAttributeValue, match=r"^Invalid value for the parameter Policy"):
        check_policy(bad)


def rules(*statements: Mapping[str, object]) -> str:
    policy = json.dumps({"Statement": list(statements)})
    check_policy(policy)
    return policy


def allows(policy: str, account: str, action: str) -> bool:
    return permissions.allows(policy, account, action, QUEUE)


def test_what_a_policy_lets_another_account_do() -> None:
    assert not allows("", OTHER, "SendMessage")
    assert allows(entry(), OTHER, "SendMessage")
    assert not allows(entry(), OTHER, "ReceiveMessage")
    assert not allows(entry(), "222222222222", "SendMessage")
    assert allows(entry(actions=("*",)), OTHER, "ReceiveMessage")


def test_principals_actions_and_denials() -> None:
    everyone = {"Effect": "Allow", "Principal": "*", "Action": "sqs:Send*"}
    assert allows(rules(everyone), OTHER, "SendMessage")
    assert not allows(rules(everyone), OTHER, "ReceiveMessage")
    assert allows(
        rules({"Effect": "Allow", "Principal": {"AWS": ["1", OTHER]}, "Action": ["SQS:*"]}), OTHER, "PurgeQueue"
    )
    service = {"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "*"}
    assert not allows(rules(service), OTHER, "SendMessage")
    role = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::{OTHER}:role/x"}, "Action": "*"}
    assert not allows(rules(role), OTHER, "SendMessage")
    deny = {"Effect": "Deny", "Principal": {"AWS": OTHER}, "Action": "sqs:SendMessage"}
    assert not allows(rules(everyone, deny), OTHER, "SendMessage")
    assert allows(rules(everyone, deny), "222222222222", "SendMessage")
    assert not allows(rules({"Effect": "Allow", "Principal": "*", "Action": "sqs:[S]endMessage"}), OTHER, "SendMessage")


def test_conditions_count_against_the_caller() -> None:
    condition = {"Condition": {"ArnEquals": {"aws:SourceArn": "x"}}}
    allow = {"Effect": "Allow", "Principal": "*", "Action": "*"}
    assert not allows(rules({**allow, **condition}), OTHER, "SendMessage")
    assert not allows(rules(allow, {**allow, "Effect": "Deny", **condition}), OTHER, "SendMessage")
    assert not allows(rules({"Effect": "Allow", "NotPrincipal": "x", "Action": "*"}), OTHER, "SendMessage")
    assert not allows(rules(allow, {"Effect": "Deny", "NotPrincipal": "x", "NotAction": "y"}), OTHER, "SendMessage")


@pytest.mark.parametrize(
    "action",
    [
        "AddPermission",
        "CancelMessageMoveTask",
        "CreateQueue",
        "DeleteQueue",
        "ListMessageMoveTasks",
        "ListQueueTags",
        "ListQueues",
        "RemovePermission",
        "SetQueueAttributes",
        "StartMessageMoveTask",
        "TagQueue",
        "UntagQueue",
        "AnActionOfALaterRelease",
    ],
)
def test_what_no_policy_gives_away(action: str) -> None:
    everything = {"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}
    assert not allows(rules(everything), OTHER, action)
    assert not allows(rules({**everything, "Action": f"sqs:{action}"}), OTHER, action)
    assert not allows(entry(actions=("*",)), OTHER, action)


@pytest.mark.parametrize(
    ("resource", "applies"),
    [
        (ARN, True),
        ("*", True),
        ("arn:aws:sqs:eu-west-1:000000000000:q", True),  # Baton compares no regions
        ("arn:aws:sqs:*:000000000000:*", True),
        ("arn:aws:sqs:us-east-1:000000000000:?", True),
        ("arn:aws:sqs:*", True),
        ("arn:*", True),
        (["arn:aws:sqs:us-east-1:000000000000:other", ARN], True),
        ("arn:aws:sqs:us-east-1:000000000000:other", False),
        ("arn:aws:sqs:us-east-1:000000000000:q?", False),
        ("arn:aws:sqs:us-east-1:111111111111:q", False),
        ("arn:aws:sns:us-east-1:000000000000:q", False),
        ("arn:aws:sqs:us-east-1:000000000000", False),
        ("q", False),
        ("", False),
        ([], False),
    ],
)
def test_a_statement_applies_to_the_queues_that_its_resource_names(resource: object, applies: bool) -> None:
    allow = {"Effect": "Allow", "Principal": "*", "Action": "sqs:SendMessage"}
    assert allows(rules({**allow, "Resource": resource}), OTHER, "SendMessage") is applies
    deny = {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage", "Resource": resource}
    assert allows(rules(allow, deny), OTHER, "SendMessage") is not applies


def test_resources_that_are_not_evaluated_count_against_the_caller() -> None:
    allow = {"Effect": "Allow", "Principal": "*", "Action": "*"}
    assert not allows(rules({**allow, "NotResource": "arn:aws:sqs:us-east-1:000000000000:other"}), OTHER, "SendMessage")
    assert not allows(rules(allow, {**allow, "Effect": "Deny", "NotResource": ARN}), OTHER, "SendMessage")
    stored_by_an_older_release = json.dumps({"Statement": [{**allow, "Resource": 5}]})
    assert not allows(stored_by_an_older_release, OTHER, "SendMessage")
