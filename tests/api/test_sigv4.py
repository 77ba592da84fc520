"""Signatures: what botocore signs is verified, and what was changed afterwards is not."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import botocore.auth
import pytest
from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from batonq.api.http import Request
from batonq.api.sqs.access import Caller, OpenAccess, SignedAccess
from batonq.api.sqs.errors import SqsError
from batonq.api.sqs.sigv4 import SIGNING_KEYS_MAX, Verifier
from batonq.core.catalog.entries import AccessKey

KEY, SECRET, ACCOUNT = "BATONKEY", "s3cr3t/+=", "111122223333"
NOW = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC)


class Keys:
    account = "0" * 12
    admin_token = ""

    def find_key(self, access_key: str) -> AccessKey | None:
        return AccessKey(KEY, SECRET, ACCOUNT, 0) if access_key == KEY else None

    def now_ms(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def signing_time() -> Iterator[None]:
    """botocore signs with a clock of its own."""
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=NOW.replace(tzinfo=None)):
        yield


def wall(seconds: float = 0) -> Any:
    return lambda: NOW.timestamp() + seconds


def verify(request: Request, seconds: float = 0) -> Caller:
    return SignedAccess(Keys(), wall(seconds)).identify(request)


def signed(
    url: str = "http://localhost:9324/",
    body: bytes = b'{"QueueName":"q"}',
    method: str = "POST",
    token: str | None = None,
    presign_s: int | None = None,
    secret: str = SECRET,
    key: str = KEY,
    service: str = "sqs",
    headers: dict[str, str] | None = None,
) -> Request:
    """A request as botocore signs it."""
    fixed = {"Content-Type": "application/x-amz-json-1.0", "X-Amz-Target": "AmazonSQS.CreateQueue"}
    headers = {**fixed, **(headers or {})}
    made = AWSRequest(method, url, headers if presign_s is None else {}, body)
    credentials = Credentials(key, secret, token)
    if presign_s is None:
        SigV4Auth(credentials, service, "eu-west-1").add_auth(made)
    else:
        SigV4QueryAuth(credentials, service, "eu-west-1", expires=presign_s).add_auth(made)
    prepared = made.prepare()
    parts = urlsplit(prepared.url)
    sent = {name.lower().encode(): as_bytes(value) for name, value in prepared.headers.items()}
    sent.setdefault(b"host", parts.netloc.encode())
    return Request(method, parts.path or "/", parts.query, sent, body)


def as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


@pytest.mark.parametrize(
    ("url", "body", "method"),
    [
        ("http://localhost:9324/", b'{"QueueName":"q"}', "POST"),
        ("http://localhost:9324/000000000000/my-queue", b"Action=SendMessage&MessageBody=a+b", "POST"),
        ("http://localhost/123/a%20b/./../c//d", b"", "POST"),
        ("http://localhost/?Action=ListQueues&b=2&a=x%20y&a=%2B%C3%A9&empty=", b"", "GET"),
        ("http://[::1]:9324/~user/q*", b"\xff" * 1000, "POST"),
    ],
)
def test_what_botocore_signs(url: str, body: bytes, method: str) -> None:
    assert verify(signed(url, body, method)) == Caller(ACCOUNT, KEY)


def test_a_session_token_is_signed_along() -> None:
    request = signed(token="session-token")
    assert verify(request).key == KEY
    request.headers[b"x-amz-security-token"] = b"another"
    with pytest.raises(SqsError, match="does not match"):
        verify(request)


def test_presigned_urls() -> None:
    url = "http://localhost:9324/000000000000/q?Action=SendMessage&MessageBody=hello%20there&Version=2012-11-05"
    request = signed(url, b"", "GET", presign_s=3600)
    assert "X-Amz-Signature=" in request.query
    assert verify(request, 3_599) == Caller(ACCOUNT, KEY)
    with pytest.raises(SqsError, match="Signature expired"):
        verify(request, 3_601)
    changed = Request("GET", request.path, request.query.replace("hello", "other"), request.headers)
    with pytest.raises(SqsError, match="does not match"):
        verify(changed)
    longer = Request("GET", request.path, request.query.replace("Expires=3600", "Expires=9999"), request.headers)
    with pytest.raises(SqsError, match="does not match"):
        verify(longer)
    with_token = signed(url, b"", "GET", presign_s=60, token="session/token+x")
    assert verify(with_token).key == KEY


@pytest.mark.parametrize("seconds", [-900, -1, 0, 900])
def test_clocks_may_differ_by_a_quarter_of_an_hour(seconds: int) -> None:
    assert verify(signed(), seconds).key == KEY


@pytest.mark.parametrize(("seconds", "said"), [(-901, "not yet current"), (901, "Signature expired")])
def test_and_not_by_more(seconds: int, said: str) -> None:
    with pytest.raises(SqsError, match=said) as caught:
        verify(signed(), seconds)
    assert caught.value.kind.status == 403


def test_the_wrong_secret_and_an_unknown_key() -> None:
    with pytest.raises(SqsError, match="does not match the signature you provided") as caught:
        verify(signed(secret="wrong"))
    assert (caught.value.kind.code, caught.value.kind.status) == ("SignatureDoesNotMatch", 403)
    with pytest.raises(SqsError, match="security token included in the request is invalid") as caught:
        verify(signed(key="UNKNOWN"))
    assert (caught.value.kind.code, caught.value.kind.status) == ("InvalidClientTokenId", 403)


def test_nothing_that_was_signed_can_be_changed() -> None:
    for change in (
        {"body": b'{"QueueName":"other"}'},
        {"method": "PUT"},
        {"path": "/other"},
        {"query": "a=b"},
        {"header": (b"x-amz-target", b"AmazonSQS.DeleteQueue")},
        {"header": (b"x-amz-date", b"20260304T050608Z")},
        {"header": (b"host", b"elsewhere")},
        {"header": (b"content-type", b"text/plain")},
    ):
        request = signed()
        for name, value in change.items():
            if name == "header":
                assert isinstance(value, tuple)
                request.headers[value[0]] = value[1]
            else:
                setattr(request, name, value)
        with pytest.raises(SqsError, match="does not match"):
            verify(request)


def test_what_decides_the_meaning_must_be_signed() -> None:
    request = signed()
    authorization = request.headers[b"authorization"]
    for name in (b"x-amz-target", b"x-amz-date"):
        request.headers[b"authorization"] = authorization.replace(b";" + name, b"")
        with pytest.raises(SqsError, match="must be a 'SignedHeader'"):
            verify(request)
    request.headers[b"authorization"] = authorization.replace(b"host;", b"")
    with pytest.raises(SqsError, match="'Host' must be"):
        verify(request)
    request.headers[b"authorization"] = authorization.replace(b"host;", b"host;x-missing;")
    with pytest.raises(SqsError, match="is not in the request"):
        verify(request)


def test_a_declared_payload_hash_must_be_true() -> None:
    made = AWSRequest("POST", "http://localhost/", {"X-Amz-Content-SHA256": "0" * 64, "X-Amz-Target": "x"}, b"body")
    SigV4Auth(Credentials(KEY, SECRET), "sqs", "eu-west-1").add_auth(made)
    headers = {name.lower().encode(): as_bytes(value) for name, value in made.headers.items()}
    headers[b"host"] = b"localhost"
    with pytest.raises(SqsError, match="x-amz-content-sha256"):
        verify(Request("POST", "/", "", headers, b"body"))


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "MissingAuthenticationToken"),
        ("Basic dXNlcjpwYXNz", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c/d/aws4_request, SignedHeaders=host", "IncompleteSignature"),
        ("AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00", "IncompleteSignature"),
        (f"AWS4-HMAC-SHA256 Credential={KEY}/20260304/r/sqs/aws4_request, SignedHeaders=host, Signature=\xe9", "*"),
        (f"AWS4-HMAC-SHA256 Credential={KEY}/19990304/r/sqs/aws4_request, SignedHeaders=host, Signature=00", "*"),
    ],
)
def test_what_is_no_signature(authorization: str, code: str) -> None:
    headers = {b"host": b"localhost", b"x-amz-date": b"20260304T050607Z"}
    if authorization:
        headers[b"authorization"] = authorization.encode("latin-1")
    with pytest.raises(SqsError) as caught:
        verify(Request("POST", "/", "", headers))
    assert caught.value.kind.code == code or (code == "*" and caught.value.kind.status == 403)


@pytest.mark.parametrize("time", ["", "yesterday", "20260304", "20261304T050607Z", "2026030405060700", "\xb2" * 16])
def test_times_that_are_none(time: str) -> None:
    request = signed()
    request.headers[b"x-amz-date"] = time.encode("latin-1")
    with pytest.raises(SqsError) as caught:
        verify(request)
    assert caught.value.kind.code == "IncompleteSignature"


PRESIGNED_FOR_TOO_LONG = (
    "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2Fb%2Fc%2Fd%2Faws4_request&X-Amz-SignedHeaders=host"
    "&X-Amz-Date=20260304T050607Z&X-Amz-Expires=604801&X-Amz-Signature=00"
)


@pytest.mark.parametrize(
    "expires",
    ["0", "000000000001", "0000000012096000", "0604800", "604801", "1e3", "+60", " 60", "6\u0660", "9" * 5000],
)
def test_a_lifetime_is_a_number_within_a_week(expires: str) -> None:
    url = "http://localhost:9324/?Action=ListQueues"
    request = signed(url, b"", "GET", presign_s=expires)  # type: ignore[arg-type]
    with pytest.raises(SqsError, match="X-Amz-Expires must be a number from 1 to 604800"):
        verify(request)


def test_a_lifetime_of_a_week() -> None:
    request = signed("http://localhost:9324/?Action=ListQueues", b"", "GET", presign_s=604_800)
    assert verify(request, 604_799).key == KEY


@pytest.mark.parametrize("query", ["ZX-Amz-Signature=1", "a=X-Amz-Signature=1", "X-Amz%2DSignature=1"])
def test_a_query_that_only_looks_signed(query: str) -> None:
    with pytest.raises(SqsError) as caught:
        verify(Request("GET", "/", query, {b"host": b"localhost"}))
    assert caught.value.kind.code == "MissingAuthenticationToken"


@pytest.mark.parametrize(
    "name",
    [
        "Baton-Dead-Letter",
        "Baton-Reason",
        "Baton-Consumer",
        "Baton-Of-A-Later-Release",
        "Idempotency-Key",
        "X-Amz-Security-Token",
        "X-Amz-Of-A-Later-Release",
    ],
)
def test_headers_that_change_the_meaning_must_be_signed(name: str) -> None:
    lower = name.lower().encode()
    for request in (signed(), signed("http://localhost/?Action=ListQueues", b"", "GET", presign_s=60)):
        assert verify(request).key == KEY
        request.headers[lower] = b"true"
        with pytest.raises(SqsError, match=f"'{lower.decode()}' must be a 'SignedHeader'") as caught:
            verify(request)
        assert (caught.value.kind.code, caught.value.kind.status) == ("SignatureDoesNotMatch", 403)
    made = signed(headers={name: "true"})
    assert lower in made.headers[b"authorization"] and verify(made).key == KEY
    made.headers[lower] = b"false"
    with pytest.raises(SqsError, match="does not match"):
        verify(made)


def test_headers_that_others_add_on_the_way_need_not_be_signed() -> None:
    request = signed()
    for name in (
        b"x-amzn-trace-id",
        b"x-amz-cf-id",
        b"x-forwarded-for",
        b"x-forwarded-proto",
        b"forwarded",
        b"via",
        b"traceparent",
        b"tracestate",
        b"baggage",
        b"x-request-id",
        b"accept-encoding",
        b"amz-sdk-invocation-id",  # botocore sets these two when the request is signed already
        b"amz-sdk-request",
    ):
        request.headers[name] = b"anything"
    assert verify(request).key == KEY


@pytest.mark.parametrize("names", [b"host;" * 3000, b";".join(b"h%d" % number for number in range(3000)), b";" * 5000])
def test_what_is_signed_is_hashed_once(names: bytes) -> None:
    """Else a few kilobytes could make the server hash gigabytes."""
    request = signed()
    request.headers[b"authorization"] = request.headers[b"authorization"].replace(
        b"SignedHeaders=", b"SignedHeaders=" + names
    )
    with pytest.raises(SqsError) as caught:
        verify(request)
    assert caught.value.kind.code in ("IncompleteSignature", "SignatureDoesNotMatch")
    twice = signed()
    twice.headers[b"authorization"] = twice.headers[b"authorization"].replace(b"host;", b"host;host;")
    with pytest.raises(SqsError, match="name each header once"):
        verify(twice)


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=00",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00",
        PRESIGNED_FOR_TOO_LONG,
        "&".join(f"a{n}=1" for n in range(3000)) + "&X-Amz-Signature=00",
    ],
)
def test_presigned_urls_that_are_none(query: str) -> None:
    with pytest.raises(SqsError) as caught:
        verify(Request("GET", "/", query, {b"host": b"localhost"}))
    assert caught.value.kind.code == "IncompleteSignature"


def test_signing_keys_are_kept_and_bounded() -> None:
    asked = 0

    def secret_of(key: str) -> str:
        nonlocal asked
        asked += 1
        return SECRET

    verifier = Verifier(secret_of, wall())
    for _ in range(3):
        verifier.verify(signed())
    assert len(verifier._signing_keys) == 1 and asked == 3
    for number in range(SIGNING_KEYS_MAX + 10):
        name = f"service{number}"
        verifier.verify(signed(service=name))
    assert len(verifier._signing_keys) <= SIGNING_KEYS_MAX


def test_only_signing_keys_that_signed_something_are_kept() -> None:
    verifier = Verifier(lambda key: SECRET, wall())
    with pytest.raises(SqsError, match="does not match"):
        verifier.verify(signed(secret="wrong"))
    verifier.verify(signed(service="s" * 1000))
    assert not verifier._signing_keys


def test_a_key_whose_secret_changed() -> None:
    secrets = [SECRET]
    verifier = Verifier(lambda key: secrets[0], wall())
    assert verifier.verify(signed()) == KEY
    secrets[0] = "another"
    with pytest.raises(SqsError, match="does not match"):
        verifier.verify(signed())


@pytest.mark.parametrize(
    ("key", "account"),
    [("AKIDEXAMPLE", "000000000000"), ("123456789012", "123456789012"), ("12345678901", "000000000000")],
)
def test_the_development_profile_believes(key: str, account: str) -> None:
    access = OpenAccess("000000000000")
    assert access.identify(signed(key=key, secret="anything")) == Caller(account, key, "admin", True)
    presigned = signed("http://h/?Action=ListQueues", b"", "GET", presign_s=60, key=key)
    assert access.identify(presigned) == Caller(account, key, "admin", True)


def test_the_development_profile_without_credentials() -> None:
    access = OpenAccess("000000000000")
    assert access.identify(Request("POST", "/")) == Caller("000000000000", "", "admin", True)
    for odd in (b"", b"nonsense", b"Credential=", b"Credential=\xff\xfe/x", b"Basic x"):
        assert access.identify(Request("POST", "/", headers={b"authorization": odd})).account == "000000000000"
    for number in range(3000):
        access.identify(Request("POST", "/", headers={b"authorization": b"Credential=%d/x" % number}))
    assert len(access._callers) <= 1024
