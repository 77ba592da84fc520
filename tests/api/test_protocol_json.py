"""AWS JSON: what is read, and what is refused before an operation sees it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.api.sqs import protocol_json
from batonq.api.sqs.errors import SqsError
from batonq.api.sqs.operations.table import OPERATIONS
from batonq.api.sqs.shapes import (
    AttributeValue,
    CreateQueueInput,
    DeleteMessageBatchEntry,
    DeleteMessageBatchInput,
    Message,
    ReceiveMessageOutput,
    SendMessageBatchEntry,
    SendMessageBatchInput,
    SendMessageInput,
    SendMessageOutput,
)

send = OPERATIONS["SendMessage"].decode
send_batch = OPERATIONS["SendMessageBatch"].decode
delete_batch = OPERATIONS["DeleteMessageBatch"].decode
create = OPERATIONS["CreateQueue"].decode


def text_in(value: SendMessageInput | SendMessageBatchEntry) -> str:
    """The body of a message, which is kept as its JSON text."""
    assert isinstance(value.MessageBody, bytes)
    return protocol_json.text_of(value.MessageBody)


def refused(decode: Any, body: bytes) -> str:
    with pytest.raises(SqsError) as caught:
        decode(body)
    assert caught.value.kind.type == "SerializationException"
    assert caught.value.kind.status == 400
    return caught.value.message


def test_an_empty_body_is_an_empty_input() -> None:
    assert OPERATIONS["ListQueues"].decode(b"") == OPERATIONS["ListQueues"].input()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"MessageBody":1}', "NUMBER_VALUE can not be converted to a String"),
        (b'{"MessageBody":1.5}', "DECIMAL_VALUE can not be converted to a String"),
        (b'{"MessageBody":true}', "TRUE_VALUE can not be converted to a String"),
        (b'{"MessageBody":{}}', "Start of structure or map found where not expected."),
        (b'{"MessageBody":["x"]}', "Start of list found where not expected"),
        (b'{"DelaySeconds":"5"}', "STRING_VALUE can not be converted to an Integer"),
        (b'{"DelaySeconds":5.5}', "DECIMAL_VALUE can not be converted to an Integer"),
        (b'{"MessageAttributes":"x"}', "Unexpected field type"),
        (b'{"MessageAttributes":{"a":"x"}}', "Unexpected field type"),
        (b'{"MessageAttributes":{"a":{"BinaryValue":"!"}}}', "A value of the request cannot be read."),
        (b"[]", "Start of list found where not expected"),
        (b"null", "Unexpected field type"),
        (b"{", "The request is not valid JSON."),
        (b"{}x", "The request is not valid JSON."),
        (b"\xff\xfe{}", "The request is not valid JSON."),
        (b'{"MessageBody":"\xff"}', "The request is not valid JSON."),
        (b'{"MessageBody":"\x01"}', "The request is not valid JSON."),
        (b'{"MessageBody":"\\ud800"}', "The request is not valid JSON."),
        (b'{"MessageBody":NaN}', "The request is not valid JSON."),
        (b'{"Unknown":"\xff","MessageBody":"x"}', "The request is not valid JSON."),
        (b'{"x":' + b"[" * 19_000, "The request is not valid JSON."),
        (b'{"x":' + b"[" * 100_000, "The request has more members than any valid request has."),
        (b'{"x":' + b'{"a":' * 19_000, "The request is not valid JSON."),
        (b'{"x":' + b'{"a":' * 100_000, "The request has more members than any valid request has."),
    ],
)
def test_what_is_not_an_input(body: bytes, message: str) -> None:
    assert refused(send, body) == message


@pytest.mark.parametrize(
    "body",
    [
        b'{"MessageBody":"a","MessageBody":"b"}',
        b'{"MessageBody":"b","MessageBody":"b"}',
        b'{"MessageBody":"a","MessageBody" :"b"}',
        b'{"MessageBody" :"a","MessageBody":"b"}',
        b'{"MessageBody"\n:"a","MessageBody"\t :"b"}',
        b'{"MessageBody":"a\\\\","MessageBody":"b"}',
        b'{"MessageBody":"a","Message\\u0042ody":"b"}',
        b'{"MessageBody":"b","Unknown":1,"Unknown":2}',
        b'{"MessageBody":"b","Unknown":' + b"[" * 900 + b"]" * 900 + b',"Unknown":1}',
        b'{"MessageBody":"\\u0000","MessageBody":"b"}',
        # a body that is followed by what looks like the key of the next
        b'{"MessageBody":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa,\\"MessageBody\\":\\"c","MessageBody":"b"}',
    ],
)
def test_of_two_equal_keys_the_last_one_counts(body: bytes) -> None:
    value = send(body)
    assert isinstance(value, SendMessageInput) and text_in(value) == "b"
    entry = b'{"Id":"0","Id":"1",' + body[1:]
    batch = send_batch(b'{"Entries":[{"Id":"2"}],"Entries":[{"Id":"0","MessageBody":"first"},' + entry + b"]}")
    assert isinstance(batch, SendMessageBatchInput) and batch.Entries is not None
    assert [(one.Id, text_in(one)) for one in batch.Entries] == [("0", "first"), ("1", "b")]


def test_the_last_one_counts_everywhere() -> None:
    value = send(
        b'{"MessageAttributes":{"x":{"DataType":"Binary"},"x":{"DataType":"String","DataType":"Number",'
        b'"StringValue":"1"}}}'
    )
    assert isinstance(value, SendMessageInput)
    assert value.MessageAttributes == {"x": AttributeValue("Number", "1")}
    deletes = delete_batch(b'{"QueueUrl":"a","QueueUrl":"b","Entries":[{"Id":"1","Id":"2","ReceiptHandle":"x"}]}')
    assert deletes == DeleteMessageBatchInput("b", [DeleteMessageBatchEntry("2", "x")])
    created = create(b'{"QueueName":"a","Attributes":{"DelaySeconds":"1","DelaySeconds":"2"}}')
    assert created == CreateQueueInput("a", {"DelaySeconds": "2"})


@pytest.mark.parametrize(
    ("body", "clean", "as_is"),
    [
        (b'{"MessageBody":"plain \x7f/"}', True, True),
        (b'{"MessageBody":"a \\"quote\\" and\\r\\n\\t\\\\ a \\/"}', True, False),
        (b'{"MessageBody":"\\b"}', False, False),
        (b'{"MessageBody":"\\f"}', False, False),
        (b'{"MessageBody":"\\u0041"}', False, False),
        ('{"MessageBody":"\u00e9"}'.encode(), True, True),
        ('{"MessageBody":"\u00e9\\n"}'.encode(), False, False),
        ('{"MessageBody":"\ufffe"}'.encode(), False, True),
        ('{"MessageBody":"x","Unknown":"\uffff"}'.encode(), False, True),
    ],
)
def test_what_is_known_of_the_characters(body: bytes, clean: bool, as_is: bool) -> None:
    value = send(body)
    assert isinstance(value, SendMessageInput) and (value.clean, value.as_is) == (clean, as_is)
    batch = send_batch(b'{"Entries":[{"Id":"1","MessageBody":"x"},' + body + b"]}")
    assert isinstance(batch, SendMessageBatchInput) and (batch.clean, batch.as_is) == (clean, as_is)


def test_what_looks_like_two_keys_and_is_not() -> None:
    text = 'a ":" b \\":\\" "MessageBody":"x" : {"MessageBody":"y"}'
    body = json.dumps({"MessageBody": text, "QueueUrl": "u", "Unknown": None, "DelaySeconds": None})
    value = send(body.encode())
    assert isinstance(value, SendMessageInput)
    assert text_in(value) == text and value.QueueUrl == "u"
    assert value.clean and not value.as_is


def test_clean_and_as_is_are_not_the_clients_to_say() -> None:
    value = send(b'{"(clean)":true,"(as is)":true,"MessageBody":"\\u0000"}')
    assert isinstance(value, SendMessageInput) and not value.clean and not value.as_is
    value = send(b'{"(clean)":false,"(as is)":false,"MessageBody":"x"}')
    assert isinstance(value, SendMessageInput) and value.clean and value.as_is


texts = st.text(
    alphabet=st.sampled_from('abc":\\ ,{}[]\n\u00e9\U0001f600\t') | st.characters(codec="utf-8"), max_size=40
)
attributes = st.dictionaries(
    st.text("abc.", min_size=1, max_size=5),
    st.fixed_dictionaries({"DataType": st.just("String"), "StringValue": texts}),
    max_size=3,
)
entry_dicts = st.fixed_dictionaries(
    {"Id": st.text("ab1", min_size=1, max_size=3), "MessageBody": texts},
    optional={"DelaySeconds": st.integers(0, 900), "MessageAttributes": attributes, "MessageGroupId": texts},
)


@given(st.lists(entry_dicts, max_size=5), st.booleans(), st.sampled_from([None, (",", ":"), (" , ", " : ")]))
def test_whatever_a_client_writes_is_read_back(
    entries: list[dict[str, Any]], ascii_only: bool, separators: tuple[str, str] | None
) -> None:
    given_dict = {"QueueUrl": "http://h/1/q", "Entries": entries}
    value = send_batch(json.dumps(given_dict, ensure_ascii=ascii_only, separators=separators).encode())
    assert isinstance(value, SendMessageBatchInput)
    for one in value.Entries or []:
        one.MessageBody = text_in(one)
    read = [
        {name: part for name, part in msgspec.to_builtins(entry).items() if part is not None}
        for entry in value.Entries or []
    ]
    for entry in read:
        for attribute in entry.get("MessageAttributes", {}).values():
            for name in ("BinaryValue", "StringListValues", "BinaryListValues"):
                assert attribute.pop(name, None) is None
    assert read == entries


@given(st.lists(entry_dicts, min_size=1, max_size=3), st.data())
def test_of_a_key_given_twice_the_last_value_is_read(entries: list[dict[str, Any]], data: st.DataObject) -> None:
    """Put a second copy of some key into the text, with any value and any white space around it."""
    at = data.draw(st.integers(0, len(entries) - 1))
    key = data.draw(st.sampled_from(["Id", "MessageBody"]))
    text = data.draw(st.just(entries[at][key]) | texts)
    space = data.draw(st.sampled_from(["", " ", "\n\t"]))
    parts = [json.dumps(entry) for entry in entries]
    parts[at] = parts[at][:-1] + f",{space}{json.dumps(key)}{space}:{space}{json.dumps(text)}}}"
    batch = send_batch(('{"Entries":[' + ",".join(parts) + "]}").encode())
    assert isinstance(batch, SendMessageBatchInput) and batch.Entries is not None
    assert [(one.Id, text_in(one)) for one in batch.Entries] == [
        (
            text if key == "Id" and number == at else one["Id"],
            text if key != "Id" and number == at else one["MessageBody"],
        )
        for number, one in enumerate(entries)
    ]


def test_outputs_leave_out_what_there_is_none_of() -> None:
    assert protocol_json.encode(ReceiveMessageOutput()) == b"{}"
    message = Message("id", "receipt", "md5", 'a "body"\n')
    assert json.loads(protocol_json.encode(ReceiveMessageOutput([message]))) == {
        "Messages": [{"MessageId": "id", "ReceiptHandle": "receipt", "MD5OfBody": "md5", "Body": 'a "body"\n'}]
    }
    assert protocol_json.encode(SendMessageOutput("a", "b")) == b'{"MessageId":"a","MD5OfMessageBody":"b"}'
