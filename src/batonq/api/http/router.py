"""Which handler a request goes to: pages with a path of their own, and one application for everything else."""

from __future__ import annotations

from collections.abc import Iterable

from batonq.api.http.messages import Handler, Request

ACTION = "Action="


class Router:
    """Exact paths first, then the default. A request that names an Action is the default's, whatever its path."""

    def __init__(self, default: Handler) -> None:
        self._default = default
        self._routes: dict[tuple[str, str], Handler] = {}

    def mount(self, path: str, handler: Handler, methods: Iterable[str] = ("GET", "HEAD")) -> None:
        for method in methods:
            if (method, path) in self._routes:
                raise ValueError(f"{method} {path} is mounted already")
            self._routes[method, path] = handler

    def resolve(self, request: Request) -> Handler:
        route = self._routes.get((request.method, request.path))
        if route is None or ACTION in request.query:
            return self._default
        return route
