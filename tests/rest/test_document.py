"""The OpenAPI document, its page and the words in them are whole."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest

from batonq.api.rest.examples import EXAMPLES, RECEIPT
from batonq.api.rest.field_docs import MEANINGS, meaning
from batonq.api.rest.openapi import document
from batonq.api.rest.operations import OPERATIONS
from batonq.api.rest.page import page
from batonq.api.rest.problems import kinds, title
from tests.rest.support import Rest


def fields() -> list[tuple[str, str]]:
    schemas = document()["components"]["schemas"]
    return [(name, field) for name, schema in schemas.items() for field in schema.get("properties", ())]


def test_every_field_has_a_meaning_and_every_meaning_a_field() -> None:
    used = {meaning(name, field) for name, field in fields()}
    assert used == set(MEANINGS.values())


def test_every_example_works(rest: Rest) -> None:
    paths = {operation.name: (operation.method, operation.path) for operation in OPERATIONS if operation.takes}
    assert set(EXAMPLES) == set(paths)
    rest.server.node.alarms.put("lease-store", "An alarm to acknowledge.")
    for name, value in EXAMPLES.items():
        method, path = paths[name]
        queue = "emails-dead" if name == "redrive" else "emails"
        address = path.replace("{queue}", queue).replace("{receipt}", RECEIPT).replace("{alarm}", "lease-store")
        address = address.replace("{topic}", "orders")
        address = address.replace("{group}", "audit")
        address = address.replace("{schedule}", "nightly@emails")
        answer = rest(method, address, {**value, "waitSeconds": 0} if "waitSeconds" in value else value)
        if "{receipt}" in path:
            assert answer.code == "receipt_invalid", name
        elif name in ("fetchReader", "commitReader", "failReader"):  # its epoch is of another time
            assert answer.code == "stale_member", name
        elif "{message}" in path:
            assert answer.code == "message_not_found", name
        elif "{subscription}" in path:
            assert answer.code == "not_found", name
        else:
            assert answer.status < 300, (name, answer)


def test_the_document_and_the_page_are_served(rest: Rest) -> None:
    answer = rest("GET", "/v1/openapi.json")
    assert answer.value == document()
    answer = rest("GET", "/v1/docs", headers={"Accept": "text/html"})
    assert (answer.status, answer.body) == (200, page())
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("code", sorted(kinds()))
def test_the_type_of_a_problem_leads_to_its_meaning(rest: Rest, code: str) -> None:
    answer = rest("GET", f"/problems/{code}", headers={"Accept": "text/html"})
    assert answer.status == 200
    assert title(kinds()[code]).split("`")[0] in unescape(answer.body.decode())


def test_a_type_that_is_none(rest: Rest) -> None:
    assert rest("GET", "/problems/other").code == "not_found"
    assert rest("POST", "/problems/lease_lost").code == "method_not_allowed"


def test_the_page_shows_every_operation_and_type_and_loads_nothing() -> None:
    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.ids: set[str] = set()
            self.links: set[str] = set()
            self.loads: list[str] = []

        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            for name, value in attributes:
                if name == "id":
                    self.ids.add(str(value))
                elif name == "href":
                    self.links.add(str(value))
                elif name in ("src", "srcset", "action"):
                    self.loads.append(str(value))

    reader = Reader()
    reader.feed(page().decode())
    assert {operation.name for operation in OPERATIONS} <= reader.ids
    assert {f"type-{name}" for name in document()["components"]["schemas"]} <= reader.ids
    assert {link[1:] for link in reader.links if link.startswith("#")} <= reader.ids
    assert {link for link in reader.links if not link.startswith("#")} == {"/v1/openapi.json"}
    assert reader.loads == []
    assert not re.search(r"@import|url\(", page().decode())
