"""The secured profile: every request is signed by a key of the catalog, and accounts are kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from batonq.core.catalog.machine import Catalog
from tests.api.conftest import client
from tests.api.support import bodies, http_request, json_request, query_request, receive, refused
from tests.support.server import TestServer

DENIED = "AccessDenied"


class Keys(NamedTuple):
    server: TestServer
    owner: tuple[str, str, str]  # key, secret, account
    other: tuple[str, str, str]

    def client(self, who: tuple[str, str, str], service: str = "sqs") -> Any:
        return client(service, self.server.url, who[0], who[1])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    owner = ("BATONOWNER", "owner-secret/+", "111111111111")
    other = ("BATONOTHER", "other-secret/+", "222222222222")
    with TestServer(str(tmp_path_factory.mktemp("secured")), secure=True) as server:

        async def make() -> None:
            change = server.node.catalog.change
            await change(lambda catalog, now_ms: catalog.put_key(*owner, now_ms))
            await change(lambda catalog, now_ms: catalog.put_key(*other, now_ms))

        server.run(make)
        yield Keys(server, owner, other)


def test_signed_requests(keys: Keys) -> None:
    sqs = keys.client(keys.owner)
    url = sqs.create_queue(QueueName="signed")["QueueUrl"]
    assert url == f"{keys.server.url}/{keys.owner[2]}/signed"
    sqs.send_message(QueueUrl=url, MessageBody="h\u00e9llo")
    [message] = receive(sqs, url, AttributeNames=["SenderId"])
    assert message["Body"] == "h\u00e9llo" and message["Attributes"]["SenderId"] == keys.owner[0]
    sts = keys.client(keys.owner, "sts")
    assert sts.get_caller_identity()["Account"] == keys.owner[2]
    sqs.close()
    sts.close()


def test_requests_that_are_not_signed(keys: Keys) -> None:
    answer = json_request(keys.server, "ListQueues", {})
    assert answer.status == 403
    assert answer.headers["x-amzn-query-error"] == "MissingAuthenticationToken;Sender"
    for form in ({"Action": "ListQueues"}, {"Action": "GetCallerIdentity"}, {}):
        assert query_request(keys.server, form).status == 403
    assert http_request(keys.server, "GET", "/livez").status == 200  # health is for everybody


def test_requests_that_are_signed_wrongly(keys: Keys) -> None:
    for key, secret, code in (
        (keys.owner[0], "wrong", "SignatureDoesNotMatch"),
        ("111111111111", "any", "InvalidClientTokenId"),  # an account is no key here
    ):
        sqs = keys.client((key, secret, ""))
        with refused(code, status=403):
            sqs.list_queues()
        sqs.close()


def test_a_disabled_key(keys: Keys) -> None:
    catalog = keys.server.node.catalog

    async def make_and_disable(disable: bool) -> None:
        if disable:
            await catalog.change(Catalog.disable_key, "BATONSOON")
        else:
            await catalog.change(Catalog.put_key, "BATONSOON", "secret-soon", "3" * 12)

    keys.server.run(lambda: make_and_disable(False))
    sqs = keys.client(("BATONSOON", "secret-soon", ""))
    sqs.list_queues()
    keys.server.run(lambda: make_and_disable(True))
    with refused("InvalidClientTokenId", status=403):
        sqs.list_queues()
    sqs.close()


def test_another_account_needs_permission(keys: Keys) -> None:
    owner, other = keys.client(keys.owner), keys.client(keys.other)
    url = owner.create_queue(QueueName="shared")["QueueUrl"]
    with refused(DENIED, f"Access to the resource {url} is denied.", 403):
        other.send_message(QueueUrl=url, MessageBody="x")
    owner.add_permission(
        QueueUrl=url, Label="send", AWSAccountIds=[keys.other[2]], Actions=["SendMessage", "GetQueueUrl"]
    )
    other.send_message(QueueUrl=url, MessageBody="one")
    other.send_message_batch(QueueUrl=url, Entries=[{"Id": "1", "MessageBody": "two"}])
    assert other.get_queue_url(QueueName="shared", QueueOwnerAWSAccountId=keys.owner[2])["QueueUrl"] == url
    for call in (
        lambda: receive(other, url),
        lambda: other.purge_queue(QueueUrl=url),
        lambda: other.delete_queue(QueueUrl=url),
        lambda: other.set_queue_attributes(QueueUrl=url, Attributes={"DelaySeconds": "1"}),
        lambda: other.start_message_move_task(SourceArn=f"arn:aws:sqs:us-east-1:{keys.owner[2]}:shared"),
    ):
        with refused(DENIED, status=403):
            call()
    assert sorted(bodies(receive(owner, url))) == ["one", "two"]
    owner.remove_permission(QueueUrl=url, Label="send")
    with refused(DENIED, status=403):
        other.send_message(QueueUrl=url, MessageBody="x")
    assert "QueueUrls" not in other.list_queues()
    owner.close()
    other.close()


def test_a_queue_of_another_account_that_does_not_exist(keys: Keys) -> None:
    other = keys.client(keys.other)
    with refused("AWS.SimpleQueueService.NonExistentQueue"):
        other.send_message(QueueUrl=f"{keys.server.url}/{keys.owner[2]}/nothing", MessageBody="x")
    other.close()


def test_a_policy_that_allows_everything_does_not_hand_over_the_queue(keys: Keys) -> None:
    owner, other = keys.client(keys.owner), keys.client(keys.other)
    url = owner.create_queue(QueueName="open")["QueueUrl"]
    dead = owner.create_queue(QueueName="open-dead")["QueueUrl"]
    arn, dead_arn = (f"arn:aws:sqs:us-east-1:{keys.owner[2]}:{name}" for name in ("open", "open-dead"))
    redrive = json.dumps({"deadLetterTargetArn": dead_arn, "maxReceiveCount": 5})
    owner.set_queue_attributes(QueueUrl=url, Attributes={"RedrivePolicy": redrive})
    owner.add_permission(QueueUrl=url, Label="all", AWSAccountIds=[keys.other[2]], Actions=["*"])
    everything = {"Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": "*"}
    owner.set_queue_attributes(QueueUrl=dead, Attributes={"Policy": json.dumps({"Statement": [everything]})})
    theirs = {"Policy": json.dumps({"Statement": [{**everything, "Sid": "theirs"}]})}
    before = [owner.get_queue_attributes(QueueUrl=each, AttributeNames=["All"])["Attributes"] for each in (url, dead)]
    for each, its_arn in ((url, arn), (dead, dead_arn)):
        here, source = {"QueueUrl": each}, {"SourceArn": its_arn}
        for name, given in (
            ("set_queue_attributes", {**here, "Attributes": theirs}),
            ("set_queue_attributes", {**here, "Attributes": {"DelaySeconds": "7"}}),
            ("add_permission", {**here, "Label": "x", "AWSAccountIds": [keys.other[2]], "Actions": ["SendMessage"]}),
            ("remove_permission", {**here, "Label": "all"}),
            ("tag_queue", {**here, "Tags": {"a": "b"}}),
            ("untag_queue", {**here, "TagKeys": ["a"]}),
            ("list_queue_tags", here),
            ("start_message_move_task", source),
            ("list_message_move_tasks", source),
            ("delete_queue", here),
        ):
            with refused(DENIED, status=403):
                getattr(other, name)(**given)
        other.send_message(QueueUrl=each, MessageBody="allowed")
        (message,) = receive(other, each)
        other.delete_message(QueueUrl=each, ReceiptHandle=message["ReceiptHandle"])
        other.purge_queue(QueueUrl=each)
    after = [owner.get_queue_attributes(QueueUrl=each, AttributeNames=["All"])["Attributes"] for each in (url, dead)]
    for name in ("Policy", "DelaySeconds", "LastModifiedTimestamp"):
        assert [values.get(name) for values in after] == [values.get(name) for values in before]
    owner.close()
    other.close()


def test_a_statement_for_another_queue_opens_nothing(keys: Keys) -> None:
    owner, other = keys.client(keys.owner), keys.client(keys.other)
    url = owner.create_queue(QueueName="closed")["QueueUrl"]
    statement = {"Effect": "Allow", "Principal": {"AWS": keys.other[2]}, "Action": "sqs:SendMessage"}

    def set_resource(resource: str) -> None:
        policy = json.dumps({"Statement": [{**statement, "Resource": resource}]})
        owner.set_queue_attributes(QueueUrl=url, Attributes={"Policy": policy})

    set_resource(f"arn:aws:sqs:us-east-1:{keys.owner[2]}:another")
    with refused(DENIED, status=403):
        other.send_message(QueueUrl=url, MessageBody="x")
    set_resource(f"arn:aws:sqs:*:{keys.owner[2]}:clo*")
    other.send_message(QueueUrl=url, MessageBody="x")
    owner.close()
    other.close()


def test_what_botocore_is_told_to_send_is_signed_and_what_others_add_is_not_taken(keys: Keys) -> None:
    owner = keys.client(keys.owner)
    url = owner.create_queue(QueueName="headers")["QueueUrl"]

    def before_it_is_signed(params: Any, **_: object) -> None:
        params["headers"]["Baton-Consumer"] = "worker-7"

    def when_it_is_signed(request: Any, **_: object) -> None:
        request.headers["Baton-Consumer"] = "somebody else"

    owner.send_message(QueueUrl=url, MessageBody="x")
    owner.meta.events.register("before-call.sqs.ReceiveMessage", before_it_is_signed)
    assert bodies(receive(owner, url)) == ["x"]
    owner.meta.events.unregister("before-call.sqs.ReceiveMessage", before_it_is_signed)
    owner.meta.events.register("before-send.sqs.ReceiveMessage", when_it_is_signed)
    with refused(
        "SignatureDoesNotMatch", "'baton-consumer' must be a 'SignedHeader' in the AWS Authorization.", status=403
    ):
        receive(owner, url)
    owner.close()
