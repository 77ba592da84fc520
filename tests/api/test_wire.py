"""The wire itself: both protocols without a client in between, down to headers and texts."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree as ET

import pytest
from botocore.exceptions import ClientError

from batonq.api.sqs.protocol_json import WEIGHT
from tests.api.support import Answer, bodies, counts, http_request, json_request, query_request, receive, wait_until
from tests.support.server import ACCOUNT, TestServer

NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


@pytest.fixture
def url(server: TestServer, request: pytest.FixtureRequest) -> str:
    """A queue of the configured account, which requests without credentials belong to."""
    name = f"wire-{abs(hash(request.node.name))}"
    return str(json_request(server, "CreateQueue", {"QueueName": name}).json["QueueUrl"])


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def xml_text(answer: Answer, path: str) -> str | None:
    return ET.fromstring(answer.body).findtext("/".join(NAMESPACE + part for part in path.split("/")))


# --- JSON -------------------------------------------------------------------------------------


def test_json_success(server: TestServer, url: str) -> None:
    answer = json_request(server, "SendMessage", {"QueueUrl": url, "MessageBody": "x"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    assert len(answer.headers["x-amzn-requestid"]) == 36
    assert set(answer.json) == {"MessageId", "MD5OfMessageBody"}
    json_request(server, "PurgeQueue", {"QueueUrl": url})
    assert json_request(server, "ReceiveMessage", {"QueueUrl": url}).body == b"{}"
    assert json_request(server, "ListQueueTags", {"QueueUrl": url}).body == b"{}"
    assert json_request(server, "DeleteQueue", {"QueueUrl": url}).body == b"{}"


def test_json_errors(server: TestServer) -> None:
    answer = json_request(server, "GetQueueUrl", {"QueueName": "nothing"})
    assert answer.status == 400
    assert answer.json == {
        "__type": "com.amazonaws.sqs#QueueDoesNotExist",
        "message": "The specified queue does not exist.",
    }
    assert answer.headers["x-amzn-query-error"] == "AWS.SimpleQueueService.NonExistentQueue;Sender"
    assert answer.headers["content-type"] == "application/x-amz-json-1.0"
    unknown = json_request(server, "Nonsense", {})
    assert unknown.status == 404 and unknown.json["__type"].endswith("#UnknownOperationException")
    bad = json_request(server, "SendMessage", b'{"MessageBody":[]}')
    assert bad.status == 400 and bad.json["__type"].endswith("#SerializationException")


@pytest.mark.parametrize(
    ("operation", "given", "parameter"),
    [
        ("SendMessage", {}, "QueueUrl"),
        ("SendMessage", {"QueueUrl": ""}, "QueueUrl"),
        ("SendMessage", {"QueueUrl": "*"}, "MessageBody"),
        ("DeleteMessage", {"QueueUrl": "*"}, "ReceiptHandle"),
        ("ChangeMessageVisibility", {"QueueUrl": "*"}, "ReceiptHandle"),
        ("ChangeMessageVisibility", {"QueueUrl": "*", "ReceiptHandle": "x"}, "VisibilityTimeout"),
        ("StartMessageMoveTask", {}, "SourceArn"),
        ("ListMessageMoveTasks", {}, "SourceArn"),
        ("CancelMessageMoveTask", {}, "TaskHandle"),
        ("RemovePermission", {"QueueUrl": "*"}, "Label"),
        ("SetQueueAttributes", {"QueueUrl": "*"}, "Attribute.Name"),
        ("TagQueue", {"QueueUrl": "*"}, "Tags"),
        ("UntagQueue", {"QueueUrl": "*"}, "TagKeys"),
    ],
)
def test_missing_parameters(
    server: TestServer, url: str, operation: str, given: dict[str, str], parameter: str
) -> None:
    if given.get("QueueUrl") == "*":
        given = {**given, "QueueUrl": url}
    answer = json_request(server, operation, given)
    assert answer.status == 400
    assert answer.json == {
        "__type": "com.amazonaws.sqs#MissingRequiredParameterException",
        "message": f"The request must contain the parameter {parameter}.",
    }
    assert answer.headers["x-amzn-query-error"] == "MissingParameter;Sender"


def test_json_at_the_queues_own_address(server: TestServer, url: str) -> None:
    """The PHP SDK posts JSON there; the queue may be named by the address alone."""
    path = path_of(url)
    assert json_request(server, "SendMessage", {"QueueUrl": url, "MessageBody": "a"}, path).status == 200
    assert json_request(server, "SendMessage", {"MessageBody": "b"}, path).status == 200
    received = json_request(server, "ReceiveMessage", {"MaxNumberOfMessages": 10}, path).json["Messages"]
    assert sorted(bodies(received)) == ["a", "b"]


@pytest.mark.parametrize("form", ["{url}", "http://elsewhere:1/{path}", "https://elsewhere/{path}", "{name}"])
def test_ways_to_name_a_queue(server: TestServer, url: str, form: str) -> None:
    named = form.format(url=url, path=path_of(url)[1:], name=url.rsplit("/", 1)[1])
    assert json_request(server, "SendMessage", {"QueueUrl": named, "MessageBody": "x"}).status == 200


@pytest.mark.parametrize("address", ["http://h/", "http://h/a/b/c", "http://h/only", "http://[/a/b", "/"])
def test_addresses_that_are_none(server: TestServer, address: str) -> None:
    answer = json_request(server, "SendMessage", {"QueueUrl": address, "MessageBody": "x"})
    assert answer.status == 400 and "is not valid for this endpoint" in answer.json["message"]


def test_queue_urls_follow_the_clients_host(server: TestServer, url: str) -> None:
    name = url.rsplit("/", 1)[1]
    answer = json_request(server, "GetQueueUrl", {"QueueName": name}, headers={"Host": "queues.example:1234"})
    assert answer.json["QueueUrl"] == f"http://queues.example:1234/{ACCOUNT}/{name}"


def test_queue_urls_with_a_public_address(tmp_path_factory: pytest.TempPathFactory) -> None:
    with TestServer(str(tmp_path_factory.mktemp("public")), public_url="https://queues.example/") as server:
        answer = json_request(server, "CreateQueue", {"QueueName": "q"})
        assert answer.json["QueueUrl"] == f"https://queues.example/{ACCOUNT}/q"


# --- query ------------------------------------------------------------------------------------


def test_query_success(server: TestServer, url: str) -> None:
    sent = query_request(server, {"Action": "SendMessage", "QueueUrl": url, "MessageBody": "a <b> & c"})
    assert sent.status == 200 and sent.headers["content-type"] == "text/xml"
    assert len(xml_text(sent, "SendMessageResult/MessageId") or "") == 36
    assert xml_text(sent, "ResponseMetadata/RequestId") == sent.headers["x-amzn-requestid"]
    received = query_request(server, {"Action": "ReceiveMessage", "AttributeName.1": "All"}, path_of(url), "GET")
    assert xml_text(received, "ReceiveMessageResult/Message/Body") == "a <b> & c"
    empty = query_request(server, {"Action": "ReceiveMessage"}, path_of(url))
    assert empty.status == 200 and xml_text(empty, "ReceiveMessageResult/Message") is None
    deleted = query_request(server, {"Action": "DeleteQueue", "Version": "2012-11-05"}, path_of(url), "GET")
    assert xml_text(deleted, "ResponseMetadata/RequestId") is not None


def test_query_errors(server: TestServer) -> None:
    answer = query_request(server, {"Action": "GetQueueUrl", "QueueName": "nothing"})
    assert answer.status == 400
    root = ET.fromstring(answer.body)
    assert [(part.tag.removeprefix(NAMESPACE), part.text) for part in root[0]] == [
        ("Type", "Sender"),
        ("Code", "AWS.SimpleQueueService.NonExistentQueue"),
        ("Message", "The specified queue does not exist for this wsdl version."),
        ("Detail", None),
    ]
    assert root[1].tag == NAMESPACE + "RequestId" and root.tag == NAMESPACE + "ErrorResponse"


def test_the_parameter_wins_over_the_path(server: TestServer, url: str) -> None:
    other = json_request(server, "CreateQueue", {"QueueName": "wire-other"}).json["QueueUrl"]
    query_request(server, {"Action": "SendMessage", "MessageBody": "x", "QueueUrl": other}, path_of(url))
    assert json_request(server, "ReceiveMessage", {"QueueUrl": url}).json == {}
    assert len(json_request(server, "ReceiveMessage", {"QueueUrl": other}).json["Messages"]) == 1
    json_request(server, "DeleteQueue", {"QueueUrl": other})


@pytest.mark.parametrize("action", ["CreateQueue", "ListQueues", "Nonsense"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_actions_that_are_not_valid_at_a_queue(server: TestServer, url: str, action: str, method: str) -> None:
    answer = query_request(server, {"Action": action, "QueueName": "x"}, path_of(url), method)
    assert answer.status == 400
    assert xml_text(answer, "Error/Code") == "InvalidAction"
    assert xml_text(answer, "Error/Message") == f"The action {action} is not valid for this endpoint."


@pytest.mark.parametrize("path", ["/000000000000/some-queue", "/", "/x/y/z"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_no_action_at_all(server: TestServer, path: str, method: str) -> None:
    answer = query_request(server, {"Version": "2012-11-05"}, path, method)
    assert answer.status == 404 and answer.body.strip() == b"<UnknownOperationException/>"


def test_the_query_protocol_answers_in_json_when_asked_to(server: TestServer, url: str) -> None:
    def ask(action: str, path: str = path_of(url), **fields: str) -> Any:
        query = urlencode({"Action": action, **fields})
        answer = http_request(server, "GET", f"{path}?{query}", headers={"Accept": "application/json"})
        assert answer.headers["content-type"] == "application/json"
        return answer.status, answer.json

    status, sent = ask("SendMessage", MessageBody="a")
    assert status == 200 and sent["SendMessageResponse"]["ResponseMetadata"]["RequestId"]
    status, found = ask("ReceiveMessage", **{"AttributeName.1": "ApproximateReceiveCount", "VisibilityTimeout": "0"})
    [message] = found["ReceiveMessageResponse"]["ReceiveMessageResult"]["messages"]
    assert message["MessageId"] == sent["SendMessageResponse"]["SendMessageResult"]["MessageId"]
    assert message["Attributes"] == [{"Name": "ApproximateReceiveCount", "Value": "1"}]
    assert ask("PurgeQueue")[1].keys() == {"PurgeQueueResponse"}
    assert ask("ReceiveMessage")[1]["ReceiveMessageResponse"]["ReceiveMessageResult"] == {"messages": None}
    assert url in ask("ListQueues", "/")[1]["ListQueuesResponse"]["ListQueuesResult"]["queueUrls"]
    status, refused = ask("ListQueues")
    assert status == 400 and refused["Error"]["Code"] == "InvalidAction" and refused["RequestId"]


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods(server: TestServer, method: str) -> None:
    assert http_request(server, method, "/").status == 405


def test_a_form_that_is_none(server: TestServer) -> None:
    for body in (b"\xff\xfe", b"Action=ListQueues&a=%ff", "Action=ListQueues&Action=CreateQueue"):
        answer = http_request(server, "POST", "/", body)
        assert answer.status == 400 and xml_text(answer, "Error/Code") == "MalformedInput"


def test_messages_of_any_text_survive_both_protocols(server: TestServer, url: str) -> None:
    text = "line\r\nend\ttab \u00e9 \U0001f600 <&>\" ' \ufffd \u2028"
    query_request(server, {"Action": "SendMessage", "QueueUrl": url, "MessageBody": text})
    [message] = json_request(server, "ReceiveMessage", {"QueueUrl": url, "VisibilityTimeout": 0}).json["Messages"]
    assert message["Body"] == text
    answer = query_request(server, {"Action": "ReceiveMessage", "QueueUrl": url})
    assert xml_text(answer, "ReceiveMessageResult/Message/Body") == text


def test_characters_that_are_refused_in_both_protocols(server: TestServer, url: str) -> None:
    for text in ("\x00", "\x0b", "\ufffe", "\uffff"):
        as_json = json_request(server, "SendMessage", {"QueueUrl": url, "MessageBody": text})
        assert as_json.json["__type"] == "com.amazonaws.sqs#InvalidMessageContents"
        raw = f'{{"QueueUrl":"{url}","MessageBody":"{text}"}}'.encode()
        assert json_request(server, "SendMessage", raw).status == 400
        as_form = query_request(server, {"Action": "SendMessage", "QueueUrl": url, "MessageBody": text})
        assert xml_text(as_form, "Error/Code") == "InvalidMessageContents"
    # half of a surrogate pair, which no UTF-8 has
    assert json_request(server, "SendMessage", f'{{"QueueUrl":"{url}","MessageBody":"\\ud800"}}').status == 400


def test_a_body_that_is_too_large(server: TestServer) -> None:
    assert json_request(server, "SendMessage", b"x" * (4 * 1024 * 1024 + 1)).status == 413


def test_a_presigned_url(server: TestServer, sqs: Any, queue: str) -> None:
    signed = sqs.generate_presigned_url("send_message", {"QueueUrl": queue, "MessageBody": "from a link"})
    # This botocore leaves out the Action, which a link cannot do without; the older one puts it there and signs it.
    query = signed.split("?", 1)[1] + "&Action=SendMessage"
    assert "X-Amz-Credential=" in query
    assert http_request(server, "GET", f"{path_of(queue)}?{query}").status == 200
    assert bodies(receive(sqs, queue)) == ["from a link"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 200),  # typed into the address bar
        ({"Origin": "http://queues.example", "Sec-Fetch-Site": "same-origin", "Host": "queues.example"}, 200),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin", "Host": "evil.example"}, 421),
        ({"Referer": "https://elsewhere.example/page"}, 403),
        ({"Referer": "http://queues.example/", "Host": "queues.example"}, 200),
    ],
)
def test_pages_of_other_sites_have_no_say(server: TestServer, url: str, headers: dict[str, str], status: int) -> None:
    """In the development profile nothing is signed, and a form on any page can be sent to this machine."""
    form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
    assert http_request(server, "POST", path_of(url), "Action=PurgeQueue", form).status == status
    assert http_request(server, "GET", path_of(url) + "?Action=PurgeQueue", headers=headers).status == status
    assert json_request(server, "PurgeQueue", {"QueueUrl": url}, headers=headers).status == status


def test_an_sdk_shows_what_is_wrong_with_a_host(sqs: Any) -> None:
    def as_another(request: Any, **_: Any) -> None:
        request.headers["Host"] = "baton.compose:9324"

    sqs.meta.events.register("before-send.sqs", as_another)
    with pytest.raises(ClientError, match=r"421.*localhost.*--allowed-hosts baton\.compose"):
        sqs.list_queues()


def test_a_client_that_leaves_its_long_poll_takes_no_message(server: TestServer, sqs: Any, queue: str) -> None:
    body = f'{{"QueueUrl":"{queue}","WaitTimeSeconds":20,"MaxNumberOfMessages":10}}'.encode()
    with socket.create_connection(("127.0.0.1", server.http.port)) as connection:
        target = "AmazonSQS.ReceiveMessage"
        head = f"POST / HTTP/1.1\r\nHost: localhost\r\nX-Amz-Target: {target}\r\nContent-Length: {len(body)}"
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        number = server.broker.queue(*path_of(queue)[1:].split("/")).number
        host = server.node.shards[0].host()
        wait_until(lambda: host.polls.waiting(number) == 1)
    wait_until(lambda: host.polls.waiting(number) == 0)
    sqs.send_message(QueueUrl=queue, MessageBody="x")
    assert counts(sqs, queue) == (1, 0, 0)


def test_a_large_batch_of_json_texts_is_taken(server: TestServer, url: str) -> None:
    text = json.dumps([{"id": number, "tags": ["a", "b"]} for number in range(2_500)])
    entries = [{"Id": str(number), "MessageBody": text} for number in range(10)]
    assert len(text) * 10 > 500_000 and text.count("{") * 10 > WEIGHT.brackets_max
    answer = json_request(server, "SendMessageBatch", {"QueueUrl": url, "Entries": entries})
    assert answer.status == 200 and len(answer.json["Successful"]) == 10


def test_a_request_of_very_many_members_is_refused(server: TestServer, url: str) -> None:
    answer = json_request(server, "DeleteMessageBatch", {"QueueUrl": url, "Entries": [{}] * 30_000})
    assert answer.status == 400 and "more members than any valid request has" in answer.json["message"]
