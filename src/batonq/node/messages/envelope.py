"""SNS's envelope: the JSON document that a subscriber without raw delivery gets as the body of its message.

Baton does not sign messages, so the fields of the signature are there and empty.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any
from urllib.parse import urlencode

from batonq.core.ids import message_id
from batonq.core.payload import Content, Payload, decode_attributes, decode_envelope
from batonq.node.clock import iso_time


def render(payload: Payload, subscription_arn: str, base_url: str) -> Payload:
    """The payload as a subscriber gets it: with the envelope as its body, and without attributes."""
    if not payload.envelope:
        return payload
    envelope = decode_envelope(payload.envelope)
    document: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": message_id(envelope.shard, envelope.sequence),
        "TopicArn": envelope.topic_arn,
    }
    if envelope.subject:
        document["Subject"] = envelope.subject
    if payload.group:
        document["SequenceNumber"] = f"{envelope.sequence:020d}"
    document |= {
        "Message": _text(payload.body, payload.content),
        "Timestamp": iso_time(envelope.published_ms),
        "SignatureVersion": "1",
        "Signature": "",
        "SigningCertURL": "",
        "UnsubscribeURL": _unsubscribe_url(base_url, subscription_arn) if subscription_arn else "",
    }
    if payload.attributes:
        document["MessageAttributes"] = {
            attribute.name: {
                "Type": attribute.data_type,
                "Value": b64encode(attribute.value).decode() if attribute.binary else attribute.value.decode(),
            }
            for attribute in decode_attributes(payload.attributes)
        }
    body = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
    # A text: for SQS clients, a message with a JSON body has an attribute that names its content type.
    return payload._replace(body=body, body_md5=b"", attributes=b"", content=int(Content.TEXT), envelope=b"")


def _text(body: bytes, content: int) -> str:
    return b64encode(body).decode() if content == Content.BYTES else body.decode()


def _unsubscribe_url(base_url: str, subscription_arn: str) -> str:
    return f"{base_url}/?{urlencode({'Action': 'Unsubscribe', 'SubscriptionArn': subscription_arn})}"
