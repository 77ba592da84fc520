"""Find the server that is using a data directory: its URL and its admin token."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple

from batonq.certificates import pinned_context
from batonq.errors import AccessDenied, OwnershipHeld, Unavailable
from batonq.log.ownership import holder_of
from batonq.node.operations.admin_token import token_path

CERTIFICATE = "certificate.pem"  # a copy of the server's certificate


class Found(NamedTuple):
    address: str
    token: str
    context: ssl.SSLContext | None  # how to verify the server, if it uses TLS


def find_if_running(data_directory: str) -> Found | None:
    """None if no server uses the directory. Raises OwnershipHeld while one starts, AccessDenied without the token."""
    holder = holder_of(data_directory)
    if holder is None:
        return None
    if not holder.address:
        raise OwnershipHeld(
            f"The data directory {data_directory} is in use by {holder}, which is still starting. Retry."
        )
    path = token_path(data_directory)
    try:
        with open(path, encoding="ascii") as file:
            context = _context(data_directory) if holder.address.startswith("https:") else None
            return Found(holder.address, file.read().strip(), context)
    except OSError as problem:
        raise AccessDenied(f"The server is running, but its admin token in {path} cannot be read: {problem}") from None


def find(data_directory: str) -> Found:
    found = find_if_running(data_directory)
    if found is None:
        raise Unavailable(
            f"No server is using the data directory {data_directory}. Start it with: baton serve --data "
            f"{data_directory}"
        )
    return found


def certificate_path(data_directory: str) -> str:
    return os.path.join(data_directory, CERTIFICATE)


def _context(data_directory: str) -> ssl.SSLContext | None:
    """None if the server is verified like any other, for example because a proxy is in front of it."""
    path = certificate_path(data_directory)
    return pinned_context(path) if os.path.exists(path) else None
