"""Chooses the handler of a request: by exact path, by prefix, or the default application."""

from __future__ import annotations

from collections.abc import Iterable

from batonq.api.http.messages import Direct, Handler, Reply, Request

ACTION = "Action="


class Router:
    """Looks for a prefix first, then for an exact path, then uses the default.

    A request with an Action parameter goes to the default, whatever its path, except below a prefix.
    """

    def __init__(self, default: Handler) -> None:
        self._default = default
        self._routes: dict[tuple[str, str], Handler] = {}
        self._prefixes: dict[str, Handler] = {}

    def mount(self, path: str, handler: Handler, methods: Iterable[str] = ("GET", "HEAD")) -> None:
        for method in methods:
            if (method, path) in self._routes:
                raise ValueError(f"{method} {path} is mounted already")
            self._routes[method, path] = handler

    def mount_under(self, prefix: str, handler: Handler) -> None:
        """Mount a handler at `prefix`, a single name such as `/v1`, and at every path below it, for every method."""
        if prefix.count("/") != 1 or not prefix.startswith("/"):
            raise ValueError(f"{prefix} is not one name after a slash")
        if prefix in self._prefixes:
            raise ValueError(f"{prefix} is mounted already")
        self._prefixes[prefix] = handler

    def resolve(self, request: Request) -> Handler:
        end = request.path.find("/", 1)
        under = self._prefixes.get(request.path if end < 0 else request.path[:end])
        if under is not None:
            return under
        route = self._routes.get((request.method, request.path))
        if route is None or ACTION in request.query:
            return self._default
        return route


def direct_under(prefix: str, under: Direct, default: Direct) -> Direct:
    """Like the router, for requests answered without a task: `under` for paths below a prefix, else `default`."""
    start = prefix + "/"

    def direct(request: Request, reply: Reply) -> bool:
        return under(request, reply) if request.path.startswith(start) else default(request, reply)

    return direct
