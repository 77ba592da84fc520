"""The URL of a database that keeps logs: a libpq URL with two additional options.

    postgres://user:password@host:5432/database?schema=baton&unsafe=yes

`schema` is the schema of the tables (default `baton`). `unsafe=yes` accepts a server that may lose acknowledged data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from batonq.errors import InvalidInput

SCHEMES = ("postgres", "postgresql")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,40}")


@dataclass(slots=True, frozen=True)
class PostgresAddress:
    conninfo: str
    schema: str = "baton"
    unsafe: bool = False

    @property
    def shown(self) -> str:
        """Without the password."""
        parts = urlsplit(self.conninfo)
        user, at, host = parts.netloc.rpartition("@")
        return urlunsplit((parts.scheme, user.partition(":")[0] + at + host, parts.path, "", ""))


def parse(url: str) -> PostgresAddress:
    """Raises InvalidInput, which says what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidInput("The URL of a PostgreSQL log must begin with postgres:// or postgresql://.")
    rest = []
    schema, unsafe = "baton", False
    for key, value in parse_qsl(parts.query, keep_blank_values=True):
        if key == "schema":
            schema = value
        elif key == "unsafe":
            if value not in ("yes", "no"):
                raise InvalidInput(f"unsafe in the log's URL must be yes or no, not {value!r}.")
            unsafe = value == "yes"
        else:
            rest.append((key, value))
    if not _SCHEMA.fullmatch(schema):
        raise InvalidInput(
            "The schema in the log's URL must be lower-case letters, digits and _, at most 41 characters, "
            f"not {schema!r}."
        )
    conninfo = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(rest), ""))
    return PostgresAddress(conninfo, schema, unsafe)
