"""Scripts, styles and images of the dashboard. Their URLs contain a hash of their content, so browsers keep them."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from batonq.api.http import Request, Response
from batonq.api.http.messages import plain

DIRECTORY = Path(__file__).parent / "static"
PREFIX = "/ui/static/"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"


class Asset(NamedTuple):
    content: bytes
    content_type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    found = {}
    for path in sorted(DIRECTORY.iterdir()):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            found[path.name] = Asset(content, _TYPES[path.suffix], blake2b(content, digest_size=8).hexdigest())
    return found


def url(name: str) -> str:
    """The URL of a file in the directory `static`."""
    return f"{PREFIX}{assets()[name].digest}/{name}"


def serve(request: Request) -> Response:
    digest, _, name = request.path.removeprefix(PREFIX).partition("/")
    asset = assets().get(name)
    if asset is None:
        return plain(404, "There is no such file.")
    tag = f'"{asset.digest}"'
    # A URL of another version, from a page that is still open, gets the present content, which must not be kept.
    headers = (("ETag", tag), ("Cache-Control", _FOREVER if digest == asset.digest else "no-cache"))
    if request.header(b"if-none-match") == tag:
        return Response(304, b"", asset.content_type, headers)
    return Response(200, asset.content, asset.content_type, headers)
