"""The admin token of a data directory: who can read the file may operate the server."""

from __future__ import annotations

import os
from collections.abc import Callable
from hmac import compare_digest

TOKEN_FILE = "admin-token"
TOKEN_BYTES = 24


def load_or_make_token(data_directory: str, random_bytes: Callable[[int], bytes]) -> str:
    """The admin token of a data directory, created at the first start."""
    path = token_path(data_directory)
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except FileNotFoundError:
        token = ""
    if len(token) < TOKEN_BYTES:
        token = random_bytes(TOKEN_BYTES).hex()
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(handle, "w", encoding="ascii") as file:
            file.write(token + "\n")
    return token


def token_path(data_directory: str) -> str:
    return os.path.join(data_directory, TOKEN_FILE)


def same_token(given: str, token: str) -> bool:
    """Whether the tokens are equal, in a time that does not depend on where they differ. An empty token never is."""
    return bool(token) and compare_digest(given.encode(), token.encode())
