"""Calls between the nodes of a cluster, over HTTP. They need the cluster's secret, or must come from this machine.

Nodes are not browsers. A request with headers that a browser adds on behalf of a web page is refused, even in a cluster
without a secret, where every other program on the machine is trusted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial

from batonq.api.http import Heads, Reply, Request, Response
from batonq.errors import AccessDenied, BatonError, Unavailable
from batonq.node import events
from batonq.node.cluster.node_server import ShardAnswering
from batonq.node.cluster.peers import CALL_HEADER, PREFIX
from batonq.node.cluster.signing import CHALLENGE_HEADER, METHOD, SIGNATURE_HEADER, STAMP_HEADER, Verifier
from batonq.node.routing import wire

LOOPBACK = ("127.", "::1", "[::1]")
CALL_NAME_MAX = 100
_CALL, _SIGNATURE, _STAMP = CALL_HEADER.encode(), SIGNATURE_HEADER.encode(), STAMP_HEADER.encode()
_CONTENT_TYPE = wire.CONTENT_TYPE.encode()
_OF_BROWSERS = (b"origin", b"sec-fetch-site")


class InternalApp:
    """Answers calls of other nodes. `trusted`: all callers are allowed, as on a socket that only its owner can open.
    `only`: the paths that are answered; None for all.
    """

    def __init__(
        self,
        answering: ShardAnswering,
        secret: bytes,
        *,
        trusted: bool = False,
        only: frozenset[str] | None = None,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._answering = answering
        self._verifier = Verifier(secret, random_bytes) if secret else None
        self._trusted = trusted
        self._only = only
        self._heads = Heads()

    def begin(self, request: Request, reply: Reply) -> bool:
        """Answer a call through `reply`, without a task."""
        call = request.header(_CALL)
        try:
            refused = self._refusal(request, call)
        except BatonError as problem:
            refused = _response(request.path, problem)
        if refused is not None:
            reply(self._written(refused))
            return True

        path = request.path  # `tell` must not refer to the request, which would then only be freed by a collection

        def tell(answer: bytes | Exception) -> bool:
            return reply(self._written(_response(path, answer)))

        request.cancellable = True  # a call continues when its connection is lost, unless it is a long poll
        asked = self._answering.begin(path.removeprefix(PREFIX), call, request.body, tell)
        request.abandon = partial(self._answering.abandon, asked)
        return True

    async def handle(self, request: Request) -> Response:
        """Answer a call that other requests of its connection wait for, or that closes its connection."""
        call = request.header(_CALL)
        try:
            refused = self._refusal(request, call)
            if refused is not None:
                return refused
            request.cancellable = True
            answer = await self._answering.handle(request.path.removeprefix(PREFIX), call, request.body)
        except Exception as problem:
            return _response(request.path, problem)
        return _response(request.path, answer)

    def _written(self, response: Response) -> bytes:
        return self._heads.head(response, close=False) + response.body

    def _refusal(self, request: Request, call: str) -> Response | None:
        """The response to a call that must not run. Raises AccessDenied."""
        refuse_browsers(request)
        challenge = self._check(request, call)
        return None if challenge is None else _challenged(challenge)

    def _check(self, request: Request, call: str) -> str | None:
        """Returns None when the call may run, else the challenge to send to the caller, see signing.py. Raises
        AccessDenied.
        """
        if self._only is not None and request.path.removeprefix(PREFIX) not in self._only:
            raise AccessDenied("The processes of one server communicate only through sockets in its data directory.")
        if self._trusted:
            return None
        if self._verifier is not None:
            headers = request.headers
            return self._verifier.verify(
                request.method,
                request.path,
                call,
                request.body,
                headers.get(_STAMP, b""),
                headers.get(_SIGNATURE, b""),
                asyncio.get_running_loop().time(),
            )
        if not request.peer.startswith(LOOPBACK):
            raise AccessDenied("Without a cluster secret, only nodes on the same machine may use this endpoint.")
        return None


def _response(path: str, answer: bytes | Exception) -> Response:
    if isinstance(answer, bytes):
        return Response(200, answer, wire.CONTENT_TYPE)
    if not isinstance(answer, BatonError):
        events.logger.error("a request from another node failed: %s", path, exc_info=answer)
        answer = BatonError("An internal error occurred on the other node; see its log.")
    return Response(answer.status, wire.encode_problem(answer), wire.CONTENT_TYPE)


def refuse_browsers(request: Request) -> None:
    """Raise AccessDenied for a request that a browser could have sent: nodes send none of these headers, and a browser
    cannot omit them.
    """
    headers = request.headers
    for name in _OF_BROWSERS:
        if name in headers:
            raise AccessDenied(
                f"Only cluster nodes may use this endpoint, and they do not send the header {name.decode()}."
            )
    if request.method != METHOD or headers.get(b"content-type") != _CONTENT_TYPE:
        raise AccessDenied(
            f"Only cluster nodes may use this endpoint, with {METHOD} and the content type {wire.CONTENT_TYPE}."
        )
    if len(headers.get(_CALL, b"")) > CALL_NAME_MAX:
        raise AccessDenied(f"Only cluster nodes may use this endpoint, and they send a shorter {CALL_HEADER} header.")


def _challenged(challenge: str) -> Response:
    problem = Unavailable(
        "The request's timestamp does not match, so it was not executed. Send it again with a new one."
    )
    return Response(401, wire.encode_problem(problem), wire.CONTENT_TYPE, [(CHALLENGE_HEADER, challenge)])
