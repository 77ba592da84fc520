"""Access keys in the catalog of a node, or of a data directory that no node serves: how they are created and listed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batonq.core.catalog.entries import ADMIN, WRITE, AccessKey
from batonq.core.catalog.machine import Catalog
from batonq.errors import InvalidInput
from batonq.node.catalog.catalog_host import CatalogHost

KEY_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
SECRET_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-"
KEY_PREFIX = "BATON"
KEY_LENGTH = 20
SECRET_LENGTH = 40


async def create_key(
    catalog: CatalogHost,
    random_bytes: Callable[[int], bytes],
    *,
    account: str,
    own_account: str,
    name: str = "",
    role: str = WRITE,
    lasts_ms: int = 0,
) -> AccessKey:
    """Create a key with a random id and secret. `own_account` is the server's; `lasts_ms` 0: it never expires."""
    if role == ADMIN and account != own_account:
        raise InvalidInput(
            f"Role {ADMIN} is only for keys of the server's own account, {own_account}, because it allows changes of "
            f"the server itself. Use role {WRITE} for a key of account {account[:64]}."
        )
    key_id, secret = make_key(random_bytes)
    given: dict[str, Any] = {"name": name, "role": "" if role == WRITE else role, "lasts_ms": lasts_ms}
    # Only what differs from the defaults: in a cluster, older nodes do not know these arguments.
    more = {argument: value for argument, value in given.items() if value}
    return await catalog.change(Catalog.put_key, key_id, secret, account, **more)


def list_keys(catalog: Catalog) -> list[AccessKey]:
    """All keys, oldest first."""
    return sorted(catalog.access_keys.values(), key=lambda key: (key.created_ms, key.id))


def make_key(random_bytes: Callable[[int], bytes]) -> tuple[str, str]:
    """An id and a secret for a new key."""
    letters = [KEY_LETTERS[byte % len(KEY_LETTERS)] for byte in random_bytes(KEY_LENGTH - len(KEY_PREFIX))]
    secret = [SECRET_LETTERS[byte % len(SECRET_LETTERS)] for byte in random_bytes(SECRET_LENGTH)]
    return KEY_PREFIX + "".join(letters), "".join(secret)


assert 256 % len(KEY_LETTERS) == 0 and 256 % len(SECRET_LETTERS) == 0, "every letter is as likely as the others"
