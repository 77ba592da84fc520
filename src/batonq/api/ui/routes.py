"""Finds the page of a path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from batonq.api.http import Response
from batonq.api.ui.view import Data, Page, Redirect, View

# A Response is a file with security headers of its own.
Handler = Callable[[View], Awaitable[Page | Redirect | Data | Response]]


@dataclass(slots=True, frozen=True)
class Route:
    """A page at a path such as `/ui/queues/{queue}`: `show` answers GET, `act` a submitted form."""

    path: str
    show: Handler | None = None
    act: Handler | None = None
    tab: str = ""  # the entry of the navigation to highlight


class Routes:
    def __init__(self, routes: Iterable[Route]) -> None:
        self._routes: dict[int, list[tuple[list[str], Route]]] = {}
        for route in routes:
            parts = route.path.split("/")
            self._routes.setdefault(len(parts), []).append((parts, route))
        for same_length in self._routes.values():  # fixed names before variables
            same_length.sort(key=lambda entry: [part.startswith("{") for part in entry[0]])

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of a path, and the variables in it."""
        given = path.rstrip("/").split("/")
        for parts, route in self._routes.get(len(given), ()):
            names: dict[str, str] = {}
            for part, text in zip(parts, given, strict=True):
                if part.startswith("{") and text:
                    names[part[1:-1]] = unquote(text)
                elif part != text:
                    break
            else:
                return route, names
        return None
