"""How a table's schema grows: columns are added, never changed. Schemas are in Spark's JSON format. Pure functions."""

from __future__ import annotations

import json
from typing import Any

from batonq.errors import InvalidInput


def grown(table: str, old: dict[str, Any] | None, new: dict[str, Any]) -> dict[str, Any]:
    """The old schema with the new columns of the other one; unchanged if there are none.

    Raises InvalidInput for a column that would change its type. Every column is nullable, because older files lack
    newer ones.
    """
    fields = list(old["fields"]) if old else []
    known = {field["name"]: field for field in fields}
    for field in new["fields"]:
        before = known.get(field["name"])
        if before is None:
            fields.append({**field, "nullable": True, "metadata": {}})
        elif _loose(before["type"]) != _loose(field["type"]):
            raise InvalidInput(
                f"The column {field['name']} of the table {table} is {_said(before['type'])} and cannot "
                f"become {_said(field['type'])}, because columns can only be added. Use another name."
            )
    return {"type": "struct", "fields": fields}


def _loose(kind: Any) -> Any:
    """A type without its nullability."""
    if isinstance(kind, dict):
        return {name: _loose(value) for name, value in kind.items() if name not in _NULLS}
    return [_loose(value) for value in kind] if isinstance(kind, list) else kind


_NULLS = {"nullable", "containsNull", "valueContainsNull", "metadata"}


def _said(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)
