"""STS GetCallerIdentity, which SDK-based tools call to learn the account. No other STS operation is supported."""

from __future__ import annotations

from batonq.api.sqs.access import Caller
from batonq.api.sqs.protocol_query import escape

ACTION = "GetCallerIdentity"
VERSION = "2011-06-15"
NAMESPACE = f"https://sts.amazonaws.com/doc/{VERSION}/"


def caller_identity(caller: Caller, request_id: str) -> bytes:
    account = escape(caller.account)
    return (
        f'<{ACTION}Response xmlns="{NAMESPACE}"><{ACTION}Result><Arn>arn:aws:iam::{account}:root</Arn>'
        f"<UserId>{escape(caller.sender)}</UserId><Account>{account}</Account></{ACTION}Result>"
        f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{ACTION}Response>"
    ).encode()
