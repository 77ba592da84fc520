"""An object store in a directory. An object is written completely or not at all."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

_KEY = re.compile(r"[a-z0-9-]+(/[a-z0-9-]+)*(\.[a-z0-9]+)?")


class ObjectStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        """Readers see the old object or the new one, never a partial one."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        half.write_bytes(data)
        os.replace(half, path)

    def get(self, key: str) -> bytes:
        """Raises FileNotFoundError if the object does not exist."""
        return self._path(key).read_bytes()

    def keys(self) -> list[str]:
        return sorted(str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file())

    def _path(self, key: str) -> Path:
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key: small letters, digits and -, with / between them")
        return self._root / key
