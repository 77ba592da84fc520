"""The receivers, their URLs, and whether they are enabled: a table in SQLite."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import NamedTuple


class Endpoint(NamedTuple):
    name: str
    url: str
    secret: bytes
    owner: str
    disabled: str | None  # the reason


class Endpoints:
    """Can be used by several threads."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._run(
            "CREATE TABLE IF NOT EXISTS endpoints"
            " (name TEXT PRIMARY KEY, url TEXT, secret BLOB, owner TEXT, disabled TEXT)"
        )

    def add(self, endpoint: Endpoint) -> None:
        self._run("INSERT INTO endpoints VALUES (?, ?, ?, ?, ?)", *endpoint)

    def get(self, name: str) -> Endpoint | None:
        found = self._run("SELECT * FROM endpoints WHERE name = ?", name)
        return Endpoint(*found[0]) if found else None

    def enabled(self) -> list[Endpoint]:
        return [Endpoint(*row) for row in self._run("SELECT * FROM endpoints WHERE disabled IS NULL ORDER BY name")]

    def disable(self, name: str, why: str) -> None:
        self._run("UPDATE endpoints SET disabled = ? WHERE name = ? AND disabled IS NULL", why, name)

    def enable(self, name: str) -> None:
        """The owner has reported that the receiver works again."""
        self._run("UPDATE endpoints SET disabled = NULL WHERE name = ?", name)

    def close(self) -> None:
        self._connection.close()

    def _run(self, sql: str, *parameters: object) -> list[tuple[str, str, bytes, str, str | None]]:
        with self._lock:
            return self._connection.execute(sql, parameters).fetchall()
