"""TLS certificates and keys: loaded from files and checked before they are used.

A certificate that clients would refuse is refused at the start, by a TLS handshake in memory.
"""

from __future__ import annotations

import ssl
from typing import Any, NamedTuple

from batonq.errors import InvalidInput

EXPIRED, NOT_YET_VALID, WRONG_HOST, WRONG_ADDRESS = 10, 9, 62, 64  # OpenSSL's codes for refusing a certificate
OLDEST = ssl.TLSVersion.TLSv1_2
STEPS_MAX = 16
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"


class Served(NamedTuple):
    """A server's TLS context and the validity of its certificate, in seconds since the Unix epoch."""

    context: ssl.SSLContext
    begins_s: float
    expires_s: float


def server_context(certificate_file: str, key_file: str = "") -> Served:
    """The TLS context of a server. Raises InvalidInput."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = OLDEST
    load_chain(context, certificate_file, key_file)
    context.set_alpn_protocols(["http/1.1"])
    try:
        found = shake_hands(context, pinned_context(certificate_file), None)
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code == EXPIRED:
            raise InvalidInput(f"The certificate in {certificate_file} has expired. Replace it.") from None
        if refused.verify_code == NOT_YET_VALID:
            raise InvalidInput(
                f"The certificate in {certificate_file} is not valid yet. Replace it, or correct this machine's clock."
            ) from None
        raise InvalidInput(
            f"Clients would refuse the certificate in {certificate_file} ({refused.verify_message}). Use a "
            "server certificate."
        ) from None
    except ssl.SSLError as problem:
        raise InvalidInput(
            f"TLS does not work with the certificate in {certificate_file}: {_reason(problem)}"
        ) from None
    begins_s, expires_s = (float(ssl.cert_time_to_seconds(str(found[end]))) for end in ("notBefore", "notAfter"))
    return Served(context, begins_s, expires_s)


def client_context(authority_file: str = "", certificate_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """The TLS context of a client that trusts the CAs in a file, or the system's. Raises InvalidInput."""
    if authority_file:
        _read(authority_file, "The CA certificate", _CERTIFICATE)
    try:
        context = ssl.create_default_context(cafile=authority_file or None)
        context.minimum_version = OLDEST
    except ssl.SSLError as problem:
        raise InvalidInput(f"The CA certificate in {authority_file} cannot be used: {_reason(problem)}") from None
    if certificate_file:
        load_chain(context, certificate_file, key_file)
    return context


def pinned_context(certificate_file: str) -> ssl.SSLContext:
    """The TLS context of a client that trusts exactly one certificate, whatever its issuer and host name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = OLDEST
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cafile=certificate_file)
    return context


def load_chain(context: ssl.SSLContext, certificate_file: str, key_file: str) -> None:
    """Load a certificate and its key, which may be in the same file. Raises InvalidInput."""
    key_file = key_file or certificate_file
    _read(certificate_file, "The certificate", _CERTIFICATE)
    if b"ENCRYPTED" in _read(key_file, "The certificate's private key", b"PRIVATE KEY-----"):
        raise InvalidInput(
            f"The key in {key_file} is encrypted, and the server cannot ask for a passphrase. Store it "
            f"unencrypted (openssl pkey -in {key_file} -out …), readable only for the service's user."
        )
    try:
        context.load_cert_chain(certificate_file, key_file)
    except ssl.SSLError as problem:
        if problem.reason == "KEY_VALUES_MISMATCH":
            raise InvalidInput(
                f"The key in {key_file} does not match the certificate in {certificate_file}. Use the key "
                "that the certificate was created with. In a file with a chain, the server's own certificate "
                "must come first."
            ) from None
        raise InvalidInput(
            f"The certificate in {certificate_file} or the key in {key_file} is damaged: {_reason(problem)}"
        ) from None


def check_reached(server: ssl.SSLContext, client: ssl.SSLContext, host: str, trusted: str) -> None:
    """Check that a client that trusts `trusted` (a file, or the system's CAs) accepts `server` as `host`.

    Raises InvalidInput, which says what to change.
    """
    try:
        shake_hands(server, client, host)
    except ssl.SSLCertVerificationError as refused:
        if refused.verify_code in (WRONG_HOST, WRONG_ADDRESS):
            advice = f"add {host} to its alternative names, or advertise a name that it has"
        else:
            advice = f"set --peer-ca to the CA that signed it (now: {trusted or 'the CAs of the system'})"
        raise InvalidInput(
            f"Other nodes would refuse this node's certificate ({refused.verify_message}): {advice}."
        ) from None


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> dict[str, Any]:
    """The result of a TLS handshake for the client. Raises ssl.SSLError, as the client would."""
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
    raise ssl.SSLError("the handshake does not finish")


def _read(path: str, what: str, mark: bytes) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as problem:
        raise InvalidInput(f"{what} cannot be read from {path}: {problem.strerror}.") from None
    if mark not in data:
        raise InvalidInput(f"{what} was not found in {path}: the file has no PEM block (-----BEGIN …).")
    return data


def _reason(problem: ssl.SSLError) -> str:
    return str(problem.reason or problem.strerror or problem)
