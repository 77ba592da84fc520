"""Signs requests as AWS SDKs do (Signature Version 4), quickly enough for a load client."""

from __future__ import annotations

import hmac
import time
from hashlib import sha256

_REGION = b"us-east-1"
_HEADERS = b"content-type;host;x-amz-date;x-amz-target"


class Signer:
    """One access key. The derived key changes once per day and the date once per second, so both are kept."""

    def __init__(self, access_key: str, secret: str) -> None:
        self._access_key = access_key.encode()
        self._secret = secret.encode()
        self._second = 0
        self._date = self._scope = self._key = b""

    def sign(self, port: int, operation: bytes, body: bytes) -> tuple[bytes, bytes]:
        """The headers X-Amz-Date and Authorization of a request in SQS's JSON protocol."""
        if int(time.time()) != self._second:
            self._tick()
        canonical = (
            b"POST\n/\n\ncontent-type:application/x-amz-json-1.0\nhost:127.0.0.1:%d\nx-amz-date:%b\n"
            b"x-amz-target:AmazonSQS.%b\n\n%b\n%b"
            % (port, self._date, operation, _HEADERS, sha256(body).hexdigest().encode())
        )
        text = b"AWS4-HMAC-SHA256\n%b\n%b\n%b" % (self._date, self._scope, sha256(canonical).hexdigest().encode())
        signature = hmac.digest(self._key, text, "sha256").hex().encode()
        return self._date, b"AWS4-HMAC-SHA256 Credential=%b/%b, SignedHeaders=%b, Signature=%b" % (
            self._access_key,
            self._scope,
            _HEADERS,
            signature,
        )

    def _tick(self) -> None:
        self._second = int(time.time())
        self._date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._second)).encode()
        parts = (self._date[:8], _REGION, b"sqs", b"aws4_request")
        scope = b"/".join(parts)
        if scope != self._scope:
            self._scope, self._key = scope, b"AWS4" + self._secret
            for part in parts:
                self._key = hmac.digest(self._key, part, "sha256")
