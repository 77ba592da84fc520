"""What a page's handler gets, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple
from urllib.parse import urlencode

from batonq.api.http import Request
from batonq.api.ui.backend import Backend, Problem

Level = Literal["ok", "warning", "critical", "plain"]


@dataclass(slots=True)
class View:
    """One request for a page, or one submitted form. `names` are the variables of the route's path."""

    request: Request
    backend: Backend
    names: Mapping[str, str]
    query: Mapping[str, str]
    pairs: Sequence[tuple[str, str]]  # the fields of a submitted form, in order
    now_ms: int
    address: str  # of the server, as the browser knows it: http://host:port
    secured: bool
    account: str = ""  # of the caller
    who: str = ""  # the signed-in caller as shown; empty in the development profile
    operator: bool = True  # may see the whole server
    read_only: bool = False  # nobody may change anything here

    @property
    def can_write(self) -> bool:
        """Whether buttons and forms are shown."""
        return self.backend.writable

    @property
    def why_no_changes(self) -> str:
        """What a page says in place of a form that the caller may not send."""
        if self.read_only:
            return "This dashboard is read-only: it cannot change anything."
        return f"Your key, {self.who}, has the role read: it may only read."

    @property
    def form(self) -> dict[str, str]:
        """The fields of a submitted form; of a repeated field, the last one."""
        return dict(self.pairs)

    def selected(self, name: str) -> list[str]:
        """All values of a repeated field, such as the checkboxes of a table."""
        return [value for key, value in self.pairs if key == name]

    def choice(self, name: str, allowed: tuple[str, ...]) -> str:
        """A parameter of the query that must be one of a list; the first one if it is absent or unknown."""
        given = self.query.get(name, "")
        return given if given in allowed else allowed[0]

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        """A parameter of the query that is a whole number, kept within limits."""
        text = self.query.get(name, "")
        if not text.isascii() or not text.isdecimal() or len(text) > 15:
            return default
        return min(max(int(text), low), high)

    def url(self, **changes: Any) -> str:
        """This page's URL with some parameters changed; None removes one."""
        given = {**self.query, **changes}
        kept = {name: str(value) for name, value in given.items() if value is not None and value != ""}
        return self.request.path + ("?" + urlencode(kept) if kept else "")

    async def optional(self, path: str, **query: Any) -> Any:
        """Data for a part of a page: the answer, or a Problem that the part shows instead of its content."""
        try:
            return await self.backend.get(path, **query)
        except Problem as problem:
            return problem


@dataclass(slots=True)
class Page:
    """A page: its title, the sentence that answers the reader's first question, and a template with its values."""

    title: str
    template: str
    sentence: str = ""
    level: Level = "plain"
    values: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    links: dict[str, str] = field(default_factory=dict)  # parts of the sentence that lead somewhere
    mistakes: list[Mistake] = field(default_factory=list)  # of a submitted form, shown above everything else


class Mistake(NamedTuple):
    """What is wrong with a field of a form. `input` is the id of the element to correct."""

    input: str
    label: str
    text: str


class Redirect(NamedTuple):
    """Go to another page, which shows the notice once."""

    path: str
    notice: str = ""


class Data(NamedTuple):
    """JSON for a script of the dashboard."""

    value: Any
