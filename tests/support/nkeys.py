"""Identities of NATS for a test: nkeys, and the JWTs of an operator, its accounts and a user."""

from __future__ import annotations

import base64
import json
import secrets
import time
from typing import Any

import nkeys


class Identity:
    """`public` is what a server knows, `seed` the secret."""

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(secrets.token_bytes(32), prefix)).decode()
        self._pair = nkeys.from_seed(bytearray(self.seed.encode()))
        self.public = bytes(self._pair.public_key).decode()

    def sign(self, subject: Identity, name: str, told: dict[str, Any]) -> str:
        claims = {
            "jti": secrets.token_hex(16),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject.public,
            "name": name,
            "nats": {"version": 2, **told},
        }
        parts = ({"typ": "JWT", "alg": "ed25519-nkey"}, claims)
        text = ".".join(_encode(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_encode(self._pair.sign(text.encode()))}"


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def user() -> Identity:
    return Identity(nkeys.PREFIX_BYTE_USER)


UNLIMITED = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
STORAGE = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


class Operator:
    """`configuration` is a server's, `credentials` a user's whom it lets in."""

    def __init__(self) -> None:
        operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
        account, system = (Identity(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))
        self._account = account
        permissions = {"default_permissions": {"pub": {}, "sub": {}}, "type": "account"}
        accounts = {
            account.public: operator.sign(account, "baton", {"limits": UNLIMITED | STORAGE, **permissions}),
            system.public: operator.sign(system, "system", {"limits": UNLIMITED, **permissions}),
        }
        preloaded = "\n".join(f"  {name}: {token}" for name, token in accounts.items())
        self.configuration = (
            f"operator: {operator.sign(operator, 'test', {'type': 'operator', 'system_account': system.public})}\n"
            f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preloaded}\n}}\n"
        )

    def credentials(self) -> str:
        holder = user()
        told = {"pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user"}
        token = self._account.sign(holder, "node", told)
        return (
            f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{holder.seed}\n------END USER NKEY SEED------\n"
        )
