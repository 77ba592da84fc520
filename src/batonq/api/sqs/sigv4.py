"""AWS Signature Version 4: verifies that a request was signed by the key it names, in headers or in a presigned URL.

The age of a signature is judged by the wall clock, since that is the only clock that client and server share.
"""

from __future__ import annotations

import hmac
import re
from calendar import timegm
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import product
from typing import NamedTuple
from urllib.parse import quote

from batonq.api.http import Request
from batonq.api.sqs import percent
from batonq.api.sqs.errors import (
    INCOMPLETE_SIGNATURE,
    INVALID_KEY,
    MISSING_AUTHENTICATION,
    WRONG_SIGNATURE,
    SqsError,
)
from batonq.node.bounded_cache import BoundedCache

ALGORITHM = "AWS4-HMAC-SHA256"
SKEW_MAX_S = 900
EXPIRES_MAX_S = 604_800
SIGNING_KEYS_MAX = 1_024
SCOPE_LENGTH_MAX = 256  # signing keys with longer scopes are not cached
QUERY_PARAMETERS_MAX = 2_000
FIELDS_MAX = 8  # of an Authorization header, which needs three
SIGNED_HEADERS_MAX = 100
_UNRESERVED = "-_.~"
_EXPIRES = re.compile(r"[1-9][0-9]{0,5}")
# An attacker who could add or change one of these headers could change what the request means, or how long it is valid.
# SDKs do not sign their amz-sdk-* headers.
_MUST_BE_SIGNED = (b"x-amz-", b"baton-", b"idempotency-key")  # prefixes of header names
_ADDED_ON_THE_WAY = (b"x-amz-cf-id",)  # added by CloudFront; it has no meaning here


class Signature(NamedTuple):
    """The parts of a request's signature."""

    access_key: str
    date: str
    region: str
    service: str
    signed_headers: list[str]
    signature: str
    time: str  # like 20260102T030405Z
    expires_s: int | None  # only for a presigned URL

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{self.service}/aws4_request"


def parse(request: Request) -> Signature:
    """Parse a request's signature without verifying it. Raises SqsError when there is none."""
    authorization = request.header(b"authorization")
    if authorization:
        return _from_header(request, authorization)
    if "X-Amz-Signature=" in request.query:
        values = dict(_pairs(request.query))
        if "X-Amz-Signature" in values:
            return _from_query(values)
    raise SqsError(MISSING_AUTHENTICATION, "Request is missing Authentication Token")


def _from_header(request: Request, authorization: str) -> Signature:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != ALGORITHM:
        raise SqsError(INCOMPLETE_SIGNATURE, f"Unsupported AWS 'algorithm': only {ALGORITHM} is known.")
    fields = {}
    for part in rest.split(",", FIELDS_MAX):
        name, _, value = part.strip().partition("=")
        fields[name] = value
    for name in ("Credential", "SignedHeaders", "Signature"):
        if not fields.get(name):
            raise SqsError(INCOMPLETE_SIGNATURE, f"Authorization header requires '{name}' parameter.")
    time = request.header(b"x-amz-date")
    if not time:
        raise SqsError(INCOMPLETE_SIGNATURE, "Authorization header requires existence of an 'X-Amz-Date' header.")
    return _signature(fields["Credential"], fields["SignedHeaders"], fields["Signature"], time, None)


def _from_query(values: dict[str, str]) -> Signature:
    if values.get("X-Amz-Algorithm") != ALGORITHM:
        raise SqsError(INCOMPLETE_SIGNATURE, f"Unsupported AWS 'algorithm': only {ALGORITHM} is known.")
    for name in ("X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Date", "X-Amz-Expires"):
        if not values.get(name):
            raise SqsError(INCOMPLETE_SIGNATURE, f"AWS query-string parameters must include '{name}'.")
    expires = values["X-Amz-Expires"]
    if not _EXPIRES.fullmatch(expires) or int(expires) > EXPIRES_MAX_S:
        raise SqsError(INCOMPLETE_SIGNATURE, f"X-Amz-Expires must be a number from 1 to {EXPIRES_MAX_S}.")
    return _signature(
        values["X-Amz-Credential"],
        values["X-Amz-SignedHeaders"],
        values["X-Amz-Signature"],
        values["X-Amz-Date"],
        int(expires),
    )


def _signature(credential: str, signed: str, signature: str, time: str, expires_s: int | None) -> Signature:
    parts = credential.split("/", 5)
    if len(parts) != 5 or parts[4] != "aws4_request" or not all(parts):
        raise SqsError(
            INCOMPLETE_SIGNATURE,
            "Credential must have exactly 5 slash-delimited elements: key/date/region/service/term.",
        )
    access_key, date, region, service, _ = parts
    names = signed.lower().split(";", SIGNED_HEADERS_MAX)
    if len(names) > SIGNED_HEADERS_MAX:
        raise SqsError(INCOMPLETE_SIGNATURE, f"SignedHeaders names more than {SIGNED_HEADERS_MAX} headers.")
    return Signature(access_key, date, region, service, names, signature, time, expires_s)


def _pairs(query: str) -> list[tuple[str, str]]:
    parts = [part for part in query.split("&") if part]
    if len(parts) > QUERY_PARAMETERS_MAX:
        raise SqsError(INCOMPLETE_SIGNATURE, "The query has too many parameters.")
    pairs = (part.partition("=") for part in parts)
    try:
        return [
            (percent.decode(name, errors="replace"), percent.decode(value, errors="replace"))
            for name, _, value in pairs
        ]
    except ValueError:
        raise SqsError(INCOMPLETE_SIGNATURE, "The query is not percent-encoded.") from None


class Verifier:
    """Verifies signatures. A derived signing key is valid for one day and one service, so it is cached."""

    def __init__(self, find_secret: Callable[[str], str | None], wall: Callable[[], float]) -> None:
        self._find_secret = find_secret
        self._wall = wall
        self._signing_keys: BoundedCache[tuple[str, str, str], bytes] = BoundedCache(SIGNING_KEYS_MAX, SCOPE_LENGTH_MAX)

    def verify(self, request: Request) -> str:
        """Verify the signature and return the access key that signed the request. Raises SqsError for an invalid
        signature.
        """
        signature = parse(request)
        secret = self._find_secret(signature.access_key)
        if secret is None:
            raise SqsError(INVALID_KEY, "The security token included in the request is invalid.")
        self._check_time(signature)
        _check_signed(request, signature)
        key = self._signing_key(signature, secret)
        if not any(_is_signed(canonical, signature, key) for canonical in _canonical(request, signature)):
            raise SqsError(
                WRONG_SIGNATURE,
                "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
                "Access Key and signing method. Consult the service documentation for details.",
            )
        # Cache the key only after verification: otherwise anyone who knows the id of a key could fill the cache.
        self._signing_keys.put((signature.access_key, secret, signature.scope), key, len(signature.scope))
        return signature.access_key

    def _check_time(self, signature: Signature) -> None:
        try:
            signed_at = _seconds(signature.time)
        except ValueError:
            raise SqsError(
                INCOMPLETE_SIGNATURE, "Date must be in ISO-8601 'basic format', like 20260102T030405Z."
            ) from None
        if not signature.time.startswith(signature.date):
            raise SqsError(WRONG_SIGNATURE, "Date in Credential scope does not match the date of the request.")
        age_s = self._wall() - signed_at
        lasts_s = SKEW_MAX_S if signature.expires_s is None else signature.expires_s
        if age_s > lasts_s:
            raise SqsError(WRONG_SIGNATURE, f"Signature expired: {signature.time} is more than {lasts_s} seconds ago.")
        if age_s < -SKEW_MAX_S:
            raise SqsError(
                WRONG_SIGNATURE, f"Signature not yet current: {signature.time} is more than {SKEW_MAX_S} seconds ahead."
            )

    def _signing_key(self, signature: Signature, secret: str) -> bytes:
        # The secret is part of the cache key, so a changed secret gets a new signing key.
        name = (signature.access_key, secret, signature.scope)
        key = self._signing_keys.get(name)
        if key is None:
            key = ("AWS4" + secret).encode()
            for part in signature.scope.split("/"):
                key = hmac.new(key, part.encode(), "sha256").digest()
        return key


def _is_signed(canonical: bytes, signature: Signature, key: bytes) -> bool:
    digest = sha256(canonical).hexdigest()
    text = f"{ALGORITHM}\n{signature.time}\n{signature.scope}\n{digest}"
    expected = hmac.new(key, text.encode(), "sha256").hexdigest()
    return hmac.compare_digest(expected.encode(), signature.signature.encode("latin-1", "replace"))


def _check_signed(request: Request, signature: Signature) -> None:
    signed = {name.encode("latin-1", "replace") for name in signature.signed_headers}
    if len(signed) != len(signature.signed_headers):  # each repeated name would cost another hash of its value
        raise SqsError(INCOMPLETE_SIGNATURE, "SignedHeaders must name each header once.")
    if b"host" not in signed:
        raise SqsError(WRONG_SIGNATURE, "'Host' must be a 'SignedHeader' in the AWS Authorization.")
    for name in request.headers:
        if name.startswith(_MUST_BE_SIGNED) and name not in signed and name not in _ADDED_ON_THE_WAY:
            shown = name[:100].decode("latin-1")
            raise SqsError(WRONG_SIGNATURE, f"'{shown}' must be a 'SignedHeader' in the AWS Authorization.")
    unknown = [name.decode("latin-1") for name in signed if name not in request.headers]
    if unknown:
        raise SqsError(WRONG_SIGNATURE, f"The signed header '{unknown[0][:100]}' is not in the request.")


def _canonical(request: Request, signature: Signature) -> Iterator[bytes]:
    """The canonical form of the request, followed by variants that some clients sign.

    In the variants, the path or the query stays as it is on the wire (some versions of curl do this). The variants
    cover no less of the request.
    """
    payload = sha256(request.body).hexdigest()
    declared = request.header(b"x-amz-content-sha256")
    if declared and not hmac.compare_digest(declared.encode("latin-1"), payload.encode()):
        raise SqsError(WRONG_SIGNATURE, "The header x-amz-content-sha256 does not match what was computed.")
    headers = "".join(
        f"{name}:{' '.join(request.header(name.encode('latin-1', 'replace')).split())}\n"
        for name in signature.signed_headers
    )
    presigned = signature.expires_s is not None
    paths = dict.fromkeys((quote(_without_dots(request.path), safe="/~"), request.path))
    queries = dict.fromkeys((_canonical_query(request.query, presigned=presigned), request.query))
    for path, query in product(paths, queries):
        lines = (request.method, path, query, headers, ";".join(signature.signed_headers), payload)
        yield "\n".join(lines).encode("utf-8", "replace")


def _canonical_query(query: str, *, presigned: bool) -> str:
    if not query:
        return ""
    pairs = [
        (quote(name, safe=_UNRESERVED), quote(value, safe=_UNRESERVED))
        for name, value in _pairs(query)
        if not (presigned and name == "X-Amz-Signature")
    ]
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _without_dots(path: str) -> str:
    if "//" not in path and "/." not in path:
        return path
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts) + ("/" if parts and path.endswith("/") else "")


def _seconds(time: str) -> int:
    """Seconds since 1970 of a time like 20260102T030405Z."""
    if len(time) != 16 or time[8] != "T" or time[15] != "Z" or not (time[:8] + time[9:15]).isdigit():
        raise ValueError(time)
    numbers = int(time[:4]), int(time[4:6]), int(time[6:8]), int(time[9:11]), int(time[11:13]), int(time[13:15])
    if not (numbers[0] >= 1970 and 1 <= numbers[1] <= 12 and 1 <= numbers[2] <= 31):
        raise ValueError(time)
    return timegm((*numbers, 0, 0, 0))
