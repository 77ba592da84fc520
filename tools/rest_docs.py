"""The generated parts of the REST reference: operations and types, from the OpenAPI document."""

from __future__ import annotations

from typing import Any

from batonq.api.rest import openapi

_LIMITS = (
    ("minimum", "from {:,}"),
    ("exclusiveMinimum", "above {:,}"),
    ("maximum", "to {:,}"),
    ("minLength", "at least {:,} long"),
    ("maxLength", "at most {:,} long"),
    ("minItems", "at least {:,}"),
    ("maxItems", "at most {:,}"),
    ("maxProperties", "at most {:,}"),
)


def table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(head), ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def operations_part() -> str:
    rows = []
    for path, methods in openapi.document()["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody")
            takes = _kind(_schema(body)) if body else ""
            answers = [
                f"{status} {_kind(_schema(answer)) if 'content' in answer else ''}".strip()
                for status, answer in operation["responses"].items()
                if "$ref" not in answer
            ]
            rows.append([f"{method.upper()} `{path}`", takes, ", ".join(answers), operation["summary"]])
    return table(("request", "body", "answers", "what it does"), rows)


def parameters_part() -> str:
    rows = []
    for path, methods in openapi.document()["paths"].items():
        for method, operation in methods.items():
            for row in operation.get("parameters", ()):
                if row["in"] != "path":
                    where = f"{method.upper()} `{path}`"
                    rows.append([where, f"`{row['name']}`", row["in"], _kind(row["schema"]), row["description"]])
    return table(("request", "parameter", "in", "values", "meaning"), rows)


def types_part() -> str:
    parts = []
    for name, schema in openapi.document()["components"]["schemas"].items():
        required = schema.get("required", ())
        rows = [
            [f"`{field}`" + (" *" if field in required else ""), _kind(inner), inner["description"]]
            for field, inner in schema.get("properties", {}).items()
        ]
        parts.append(
            f"### {name}\n\n{schema.get('description', '')}\n\n{table(('field', 'values', 'meaning'), rows)}\n"
        )
    return "".join(parts)


def _schema(holder: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = next(iter(holder["content"].values()))["schema"]
    return schema


def _kind(schema: dict[str, Any]) -> str:
    """A short description of a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(inner) for inner in schema["anyOf"] if inner.get("type") != "null"))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    elif kind == "object":
        kind = f"map of {_kind(schema.get('additionalProperties') or {})}"
    limits = [words.format(schema[key]) for key, words in _LIMITS if isinstance(schema.get(key), int | float)]
    return " ".join([kind, ", ".join(limits)]).strip() if limits else kind
