"""The signature of a delivery: the receiver knows by it who has sent the event, and that nobody has changed it.

The time is signed with the body, so that a delivery which somebody has recorded cannot be played again much later.
"""

from __future__ import annotations

import hashlib
import hmac

ID_HEADER = "Webhook-Id"
SIGNATURE_HEADER = "Webhook-Signature"
TOLERANCE_S = 300.0


def signature(secret: bytes, event_id: str, body: bytes, now_s: float) -> str:
    """The value of the header: `t=<seconds since 1970>,v1=<HMAC-SHA256>`."""
    at = str(int(now_s))
    return f"t={at},v1={_digest(secret, event_id, at, body)}"


def problem(secret: bytes, event_id: str, body: bytes, header: str, now_s: float) -> str | None:
    """Why a receiver should not believe this delivery; None: it may."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    at = parts.get("t", "")
    if not at.isdigit() or not hmac.compare_digest(_digest(secret, event_id, at, body), parts.get("v1", "")):
        return "the signature does not fit"
    return "the signature is too old" if abs(now_s - int(at)) > TOLERANCE_S else None


def _digest(secret: bytes, event_id: str, at: str, body: bytes) -> str:
    return hmac.new(secret, f"{event_id}.{at}.".encode() + body, hashlib.sha256).hexdigest()
