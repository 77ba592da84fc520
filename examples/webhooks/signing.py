"""The signature of a delivery proves to the receiver who sent the event and that it was not changed.

The time is signed with the body, so that a recorded delivery cannot be replayed much later.
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
    """Why the receiver must reject this delivery, or None if it is valid."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    at = parts.get("t", "")
    if not at.isdigit() or not hmac.compare_digest(_digest(secret, event_id, at, body), parts.get("v1", "")):
        return "the signature does not fit"
    return "the signature is too old" if abs(now_s - int(at)) > TOLERANCE_S else None


def _digest(secret: bytes, event_id: str, at: str, body: bytes) -> str:
    return hmac.new(secret, f"{event_id}.{at}.".encode() + body, hashlib.sha256).hexdigest()
