"""SNS's envelope: the document that a subscriber without raw delivery gets."""

from __future__ import annotations

import json
from base64 import b64encode

from batonq.core.ids import message_id
from batonq.core.payload import (
    Attribute,
    Content,
    Envelope,
    Payload,
    decode,
    encode_attributes,
    encode_envelope,
    encode_payload,
)
from batonq.node.messages.envelope import render

ARN = "arn:aws:sns:us-east-1:000000000000:news"
TIME_MS = 1_700_000_000_123


def payload(body: bytes = b"hello", subject: str = "", **fields: object) -> Payload:
    envelope = encode_envelope(Envelope(7, 3, 99, TIME_MS, ARN, subject))
    plain = Payload(TIME_MS, "me", "", "", "", b"", b"", body, b"d" * 16)
    return plain._replace(envelope=envelope, **fields)  # type: ignore[arg-type]


def test_a_payload_keeps_its_envelope_when_it_is_encoded_again() -> None:
    one = payload(subject="größe", group="g")
    assert decode(encode_payload(one)) == one


def test_what_the_document_says() -> None:
    attributes = encode_attributes(
        [Attribute("raw", "Binary", b"\x00\xff", True), Attribute("size", "Number", b"3", False)]
    )
    one = payload('grüß "dich"'.encode(), "a subject", attributes=attributes, group="g")
    shown = render(one, f"{ARN}:uuid", "https://queue.test")
    assert json.loads(shown.body) == {
        "Type": "Notification",
        "MessageId": message_id(3, 99),
        "TopicArn": ARN,
        "Subject": "a subject",
        "SequenceNumber": "00000000000000000099",
        "Message": 'grüß "dich"',
        "Timestamp": "2023-11-14T22:13:20.123Z",
        "SignatureVersion": "1",
        "Signature": "",
        "SigningCertURL": "",
        "UnsubscribeURL": "https://queue.test/?Action=Unsubscribe&SubscriptionArn="
        "arn%3Aaws%3Asns%3Aus-east-1%3A000000000000%3Anews%3Auuid",
        "MessageAttributes": {
            "raw": {"Type": "Binary", "Value": b64encode(b"\x00\xff").decode()},
            "size": {"Type": "Number", "Value": "3"},
        },
    }
    assert (shown.content, shown.attributes, shown.body_md5, shown.envelope) == (Content.TEXT, b"", b"", b"")
    assert (shown.sender, shown.group, shown.sent_ms) == (one.sender, one.group, one.sent_ms)


def test_bytes_are_shown_in_base64() -> None:
    shown = render(payload(b"\x00\x01", content=int(Content.BYTES)), "", "")
    document = json.loads(shown.body)
    assert document["Message"] == "AAE=" and document["UnsubscribeURL"] == ""
    assert "Subject" not in document and "MessageAttributes" not in document and "SequenceNumber" not in document


def test_a_raw_message_stays_as_it_is() -> None:
    plain = payload()._replace(envelope=b"")
    assert render(plain, ARN, "") is plain
