"""Replaces a file in one step: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os


def replace_file(path: str, data: bytes, *, mode: int = 0o600, sync: bool = False, suffix: str = "new") -> None:
    """Write a file beside the old one and rename it. By default only its owner can read it.

    With `sync` the content survives a power failure. Processes that may do this at the same time need different values
    of `suffix`. Raises OSError.
    """
    beside = f"{path}.{suffix}"
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
        if mode == 0o600:
            os.fchmod(file.fileno(), mode)  # whatever a file that was left there has
        file.write(data)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(beside, path)
