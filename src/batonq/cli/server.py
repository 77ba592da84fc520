"""Finding the server that has a data directory: where it answers, and the token that it asks for."""

from __future__ import annotations

from typing import NamedTuple

from batonq.errors import AccessDenied, OwnershipHeld, Unavailable
from batonq.log.ownership import holder_of
from batonq.node.pages import token_path


class Found(NamedTuple):
    address: str
    token: str


def find_if_running(data_directory: str) -> Found | None:
    """None when no server has the directory. Raises OwnershipHeld while one starts, AccessDenied without the token."""
    holder = holder_of(data_directory)
    if holder is None:
        return None
    if not holder.address:
        raise OwnershipHeld(f"The data directory {data_directory} is in use by {holder}, which serves no address yet.")
    path = token_path(data_directory)
    try:
        with open(path, encoding="ascii") as file:
            return Found(holder.address, file.read().strip())
    except OSError as problem:
        raise AccessDenied(f"The server is running, and its admin token in {path} cannot be read: {problem}") from None


def find(data_directory: str) -> Found:
    found = find_if_running(data_directory)
    if found is None:
        raise Unavailable(f"No server is running on the data directory {data_directory}.")
    return found
