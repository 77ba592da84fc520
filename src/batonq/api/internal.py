"""What nodes of a cluster ask each other, over HTTP: only with the cluster's secret, or from this machine."""

from __future__ import annotations

from batonq.api.http import Request, Response
from batonq.errors import AccessDenied, BatonError
from batonq.node import events, wire
from batonq.node.cluster.answering import ShardAnswering
from batonq.node.cluster.peers import CALL_HEADER, PREFIX, SIGNATURE_HEADER, is_signed

LOOPBACK = ("127.", "::1", "[::1]")
_CALL, _SIGNATURE = CALL_HEADER.encode(), SIGNATURE_HEADER.encode()


class InternalApp:
    """`trusted`: whoever reaches this may ask, as on a socket that only its owner can open. `only`: the paths that are
    answered; None: all.
    """

    def __init__(
        self, answering: ShardAnswering, secret: bytes, *, trusted: bool = False, only: frozenset[str] | None = None
    ) -> None:
        self._answering = answering
        self._secret = secret
        self._trusted = trusted
        self._only = only

    async def handle(self, request: Request) -> Response:
        call = request.header(_CALL)
        try:
            self._check(request, call)
            request.cancellable = True  # a call goes on without its connection, unless it is a long poll
            answer = await self._answering.handle(request.path.removeprefix(PREFIX), call, request.body)
        except BatonError as problem:
            return Response(problem.status, wire.encode_problem(problem), wire.CONTENT_TYPE)
        except Exception:
            events.logger.exception("a call of another node failed: %s", request.path)
            unexpected = BatonError("Something went wrong in the node that was asked; its log says what.")
            return Response(unexpected.status, wire.encode_problem(unexpected), wire.CONTENT_TYPE)
        return Response(200, answer, wire.CONTENT_TYPE)

    def _check(self, request: Request, call: str) -> None:
        if request.method != "POST":
            raise AccessDenied("Only nodes of the cluster may ask this.")
        if self._only is not None and request.path.removeprefix(PREFIX) not in self._only:
            raise AccessDenied("Processes of one server ask each other by sockets in its data directory.")
        if self._trusted:
            return
        if self._secret:
            given = request.header(_SIGNATURE)
            if not is_signed(self._secret, request.path, call, request.body, given):
                raise AccessDenied("The request is not signed with the cluster's secret.")
        elif not request.peer.startswith(LOOPBACK):
            raise AccessDenied("Without a secret, only nodes on the same machine may ask this.")
