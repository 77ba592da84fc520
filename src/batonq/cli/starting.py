"""What a node of a cluster answers while it starts: its health, and calls of other nodes. All else has to wait."""

from __future__ import annotations

from batonq.api.http import Gate, HttpLimits, HttpServer, Reply, Request, Response, Router, direct_under
from batonq.api.http.messages import plain
from batonq.api.internal import InternalApp
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import PREFIX

RETRY_S = "5"


class StartingDoor:
    """`server` listens from the start on, and `internal` continues when the node has started (see serve.compose)."""

    def __init__(self, node: ClusterNode, limits: HttpLimits, gate: Gate) -> None:
        self._node = node
        self.internal = InternalApp(node.answering, node.secret)
        router = Router(self._refuse)
        router.mount("/livez", self._live)
        router.mount("/readyz", self._refuse)
        router.mount("/health", self._refuse)
        router.mount_under(PREFIX.rstrip("/"), self.internal.handle)
        direct = direct_under(PREFIX.rstrip("/"), self.internal.begin, _not_direct)
        self.server = HttpServer(router.resolve, limits, direct, gate)

    async def _live(self, request: Request) -> Response:
        return plain(200, "ok")

    async def _refuse(self, request: Request) -> Response:
        """The connection is closed, so that the next request finds the node as it is then."""
        text = f"{self._node.not_ready() or 'starting'}\n"
        return Response(503, text.encode(), headers=[("Retry-After", RETRY_S)], close=True)


def _not_direct(request: Request, reply: Reply) -> bool:
    return False
