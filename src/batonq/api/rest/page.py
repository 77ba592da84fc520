"""The OpenAPI document as a page for people: plain HTML that loads nothing from other sites."""

from __future__ import annotations

import base64
import json
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any

from batonq.api.rest import openapi
from batonq.api.rest.codec import JSON
from batonq.api.rest.problems import kinds, title

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fff; }
h2 { margin-top: 2.5rem; border-top: 1px solid #ccc; padding-top: 1rem; font-size: 1.1rem; }
h2 b { display: inline-block; min-width: 4.5rem; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; border-bottom: 1px solid #eee; }
code { font: .9em ui-monospace, monospace; background: #f4f4f4; padding: .1em .25em; border-radius: 3px; }
pre { font: .9em/1.4 ui-monospace, monospace; background: #f4f4f4; padding: .6rem .8rem; overflow-x: auto; }
small { color: #666; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #161616; } code, pre { background: #2a2a2a; } th, td { border-color: #333; }
  h2 { border-color: #444; } a { color: #8ab4f8; } small { color: #999; }
}
"""

_POLICY = (
    "default-src 'none'",
    f"style-src 'sha256-{base64.b64encode(sha256(_STYLE.encode()).digest()).decode()}'",
    "script-src 'none'",
    "connect-src 'none'",
    "img-src data:",  # the empty icon
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
)
# The page may use only its own style, and no other site may frame it.
HEADERS = (
    ("Content-Security-Policy", "; ".join(_POLICY)),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
)


@cache
def page() -> bytes:
    document = openapi.document()
    info = document["info"]
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style>",
        f"<h1>{escape(info['title'])}</h1><p>{_text(info['description'])}</p>",
        f"<p>For programs: <a href='{openapi.PATH}'>{openapi.PATH}</a> (OpenAPI {document['openapi']}).</p>",
    ]
    parts += _contents(document)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts += _operation(method.upper(), path, operation)
    parts.append("<h1>Types</h1>")
    for name, schema in document["components"]["schemas"].items():
        parts += _type(name, schema)
    return "".join(parts).encode()


def problem_page(code: str) -> bytes | None:
    """The page that a problem's `type` points to, with a short description; None when the code does not exist."""
    kind = kinds().get(code)
    if kind is None:
        return None
    again = "A retry can succeed." if kind.retryable else "A retry cannot succeed."
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{code}</title><style>{_STYLE}</style>"
        f"<h1><code>{code}</code></h1><p>{_text(title(kind))}</p><p>HTTP status {kind.status}. {again}</p>"
        f"<p><a href='{openapi.PAGE_PATH}'>The REST API</a></p>"
    ).encode()


def _contents(document: dict[str, Any]) -> list[str]:
    rows = [
        f"<tr><td>{method.upper()}<td><a href='#{operation['operationId']}'><code>{escape(path)}</code></a>"
        f"<td>{_text(operation['summary'])}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return ["<table>", *rows, "</table>"]


def _operation(method: str, path: str, operation: dict[str, Any]) -> list[str]:
    parts = [
        f"<h2 id={operation['operationId']}><b>{method}</b> <code>{escape(path)}</code></h2>",
        f"<p>{_text(operation['summary'])}</p>",
    ]
    rows = [
        f"<tr><td><code>{row['name']}</code><td>{row['in']}<td>{_kind(row['schema'])}<td>{_text(row['description'])}"
        for row in operation.get("parameters", ())
    ]
    body = operation.get("requestBody")
    if body is not None:
        kind = _kind(next(iter(body["content"].values()))["schema"])
        rows.append(f"<tr><td>body<td>{'' if body['required'] else 'optional'}<td>{kind}<td>JSON or MessagePack")
    if rows:
        parts += ["<table>", *rows, "</table>"]
    if body is not None:
        example = json.dumps(body["content"][JSON.content_type]["example"], indent=2)
        parts.append(f"<pre>{escape(example, quote=False)}</pre>")
    good, bad = [], []
    for status, answer in operation["responses"].items():
        if "$ref" in answer:
            bad.append(status)
            continue
        content = answer.get("content")
        kind = _kind(next(iter(content.values()))["schema"]) if content else "no body"
        good.append(f"<b>{status}</b> {kind or 'a document'}")
    parts.append(f"<p>Responses: {', '.join(good)}. <small>Errors: {', '.join(bad)}.</small></p>")
    return parts


def _type(name: str, schema: dict[str, Any]) -> list[str]:
    parts = [f"<h2 id=type-{name}>{name}</h2><p>{_text(schema.get('description', ''))}</p>"]
    required = schema.get("required", ())
    rows = [
        f"<tr><td><code>{escape(field)}</code><td>{'required' if field in required else ''}<td>{_kind(inner)}"
        f"<td>{_text(inner['description'])}"
        for field, inner in schema.get("properties", {}).items()
    ]
    return [*parts, "<table>", *rows, "</table>"]


def _kind(schema: dict[str, Any]) -> str:
    """A short description of a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"<a href='#type-{name}'>{name}</a>"
    if "anyOf" in schema:
        kinds = [_kind(inner) for inner in schema["anyOf"] if inner.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema:
        return ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    if "const" in schema:
        return f"<code>{escape(str(schema['const']))}</code>"
    kind = str(schema.get("type", "any value"))
    if kind == "array":
        kind = f"list of {_kind(schema.get('items', {}))}"
    elif kind == "object":
        kind = f"map of {_kind(schema.get('additionalProperties') or {})}"
    limits = "".join(f", {word} {schema[key]:,}" for key, word in _LIMITS if isinstance(schema.get(key), int | float))
    return kind + limits


_LIMITS = (
    ("minimum", "from"),
    ("exclusiveMinimum", "above"),
    ("maximum", "to"),
    ("minLength", "length from"),
    ("maxLength", "length to"),
    ("minItems", "at least"),
    ("maxItems", "at most"),
    ("maxProperties", "at most"),
)


def _text(text: str) -> str:
    """HTML-escaped text, with `code` marked up as code."""
    pieces = escape(text, quote=False).split("`")
    return "".join(f"<code>{piece}</code>" if at % 2 else piece for at, piece in enumerate(pieces))
