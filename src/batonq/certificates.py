"""Certificates and keys for TLS: loaded from files, looked at before they are used, and told of in plain words.

What a client would refuse is refused here, at the start, by shaking hands with it in memory.
"""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

from batonq.errors import InvalidInput

EXPIRED, NOT_YET_VALID, WRONG_HOST, WRONG_ADDRESS = 10, 9, 62, 64  # of OpenSSL's reasons to refuse a certificate
OLDEST = ssl.TLSVersion.TLSv1_2
STEPS_MAX = 16
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class Served(NamedTuple):
    """What a server shows, and from when until when that is valid, in seconds since the Unix epoch."""

    context: ssl.SSLContext
    begins_s: float
    expires_s: float


def server_context(certificate_file: str, key_file: str = "") -> Served:
    """For a server. Raises InvalidInput."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = OLDEST
    load_chain(context, certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    try:
        found = shake_hands(context, pinned_context(certificate_file), None)
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code == EXPIRED:
            raise InvalidInput(f"The certificate in {certificate_file} has expired: put a new one there.") from None
        if refused.verify_code == NOT_YET_VALID:
            raise InvalidInput(
                f"The certificate in {certificate_file} is not valid yet: put one there that is, or set this machine's "
                "clock."
            ) from None
        raise InvalidInput(
            f"Clients would refuse the certificate in {certificate_file} ({refused.verify_message}): put one there "
            "that was made for a server."
        ) from None
    except ssl.SSLError as problem:
        raise InvalidInput(f"TLS does not work with what is in {certificate_file}: {_reason(problem)}") from None
    begins_s, expires_s = (float(ssl.cert_time_to_seconds(str(found[end]))) for end in ("notBefore", "notAfter"))
    return Served(context, begins_s, expires_s)


def client_context(authority_file: str = "", certificate_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """For a client that trusts the authorities in a file, or the system's without one. Raises InvalidInput."""
    if authority_file:
        _read(authority_file, "The authority's certificate", _CERTIFICATE)
    try:
        context = ssl.create_default_context(cafile=authority_file or None)
        context.minimum_version = OLDEST
    except ssl.SSLError as problem:
        raise InvalidInput(
            f"The authority's certificate in {authority_file} cannot be used: {_reason(problem)}"
        ) from None
    if certificate_file:
        load_chain(context, certificate_file, key_file)
    return context


def pinned_context(certificate_file: str) -> ssl.SSLContext:
    """For a client that trusts one certificate, whoever made it and whatever host it is for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = OLDEST
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=certificate_file)
    return context


def load_chain(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    """A certificate with its key, which may be in the same file. Raises InvalidInput."""
    key_file = key_file or certificate_file
    _read(certificate_file, "The certificate", _CERTIFICATE)
    if b"ENCRYPTED" in _read(key_file, "The certificate's key", b"PRIVATE KEY-----"):
        raise InvalidInput(
            f"The key in {key_file} is encrypted, and nobody can be asked for its passphrase. Store it without one "
            f"(openssl pkey -in {key_file} -out …), readable for the service's user only."
        )
    try:
        context.load_cert_chain(certificate_file, key_file)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise InvalidInput(
                f"The key in {key_file} is not that of the certificate in {certificate_file}. Give the key that the "
                "certificate was made with; in a file with a chain, the server's own certificate comes first."
            ) from None
        raise InvalidInput(
            f"The certificate in {certificate_file} or the key in {key_file} is damaged: {_reason(problem)}"
        ) from None


def check_reached(server: ssl.SSLContext, client: ssl.SSLContext, host: str, trusted: str) -> None:
    """Would a client that trusts `trusted` (a file, or the system's authorities) take `server` for `host`?

    Raises InvalidInput, which says what to change.
    """
    try:
        shake_hands(server, client, host)
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code in (WRONG_HOST, WRONG_ADDRESS):
            advice = f"it must name {host} among its alternative names, or advertise a name that it has"
        else:
            advice = f"name the authority that signed it with --peer-ca (now: {trusted or 'those of the system'})"
        raise InvalidInput(
            f"Other nodes would refuse this node's certificate ({refused.verify_message}): {advice}."
        ) from None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> dict[str, Any]:
    """What the client learns of the server. Raises ssl.SSLError, as the client would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(STEPS_MAX):
        waiting = False
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                waiting = True
        if not waiting:
            return dict(sides[0].getpeercert() or {})
    raise ssl.SSLError("the handshake does not end")


def _read(path: str, what: str, mark: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as problem:
        raise InvalidInput(f"{what} cannot be read from {path}: {problem.strerror}.") from None
    if mark not in data:
        raise InvalidInput(f"{what} should be in {path}, and there is none in PEM form (-----BEGIN …).")
    return data


def _reason(problem: ssl.SSLError) -> str:
    return str(problem.reason or problem.strerror or problem)
