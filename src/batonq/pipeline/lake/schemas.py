"""How a table's schema grows: columns are added, never changed. Schemas as Spark writes them in JSON. Pure."""

from __future__ import annotations

import json
from typing import Any

from batonq.errors import InvalidInput


def grown(table: str, old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The old schema with the new columns of the other one; the same one when there are none.

    Raises InvalidInput for a column that would change its type. Every column may be null: older files lack the newer.
    """
    fields = list(old["fields"]) if old else []
    known = {field["name"]: field for field in fields}
    for field in new["fields"]:
        before = known.get(field["name"])
        if before is None:
            fields.append({**field, "nullable": True, "metadata": {}})
        elif _loose(before["type"]) != _loose(field["type"]):
            raise InvalidInput(
                f"The column {field['name']} of the table {table} is {_said(before['type'])}, and cannot become "
                f"{_said(field['type'])}: columns are only ever added. Write it under another name."
            )
    return {"type": "struct", "fields": fields}


def _loose(kind: Any) -> Any:
    """A type without what it says of nulls."""
    if isinstance(kind, dict):
        return {name: _loose(value) for name, value in kind.items() if name not in _NULLS}
    return [_loose(value) for value in kind] if isinstance(kind, list) else kind


_NULLS = {"nullable", "containsNull", "valueContainsNull", "metadata"}


def _said(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
