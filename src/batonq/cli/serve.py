"""`baton serve`: assemble a node and its APIs, and run them until a signal stops the server."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from dataclasses import replace
from ssl import SSLContext
from typing import Any

from batonq import __version__
from batonq.api.cloudwatch import CloudWatchApp, NodeHistory
from batonq.api.front_metrics import front_metrics
from batonq.api.http import (
    CredentialGate,
    Gate,
    HttpLimits,
    HttpServer,
    LocalGate,
    Request,
    Response,
    Router,
    direct_under,
)
from batonq.api.http.messages import plain
from batonq.api.http.server import bind
from batonq.api.internal import InternalApp
from batonq.api.rest import RestApp
from batonq.api.sns import SnsApp
from batonq.api.sqs import SqsApp, SqsSettings
from batonq.api.ui import DashboardAccess, UiApp
from batonq.cli import serve_arguments, tls
from batonq.cli.starting import StartingDoor
from batonq.errors import InvalidInput
from batonq.log.cancellation import end
from batonq.node import events
from batonq.node.cluster.admission import CLOCK_OFF_MAX_MS
from batonq.node.cluster.node import ClusterNode, read_secret
from batonq.node.cluster.peers import PREFIX, SIGNATURE_HEADER
from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import many
from batonq.node.node import Node
from batonq.node.operations.pages import Answer, Asked, Pages
from batonq.node.processes.node import ProcessNode
from batonq.node.processes.process_server import STATUS
from batonq.node.settings import Settings

CALL_BYTES_MAX = 8 * 1024 * 1024  # of a request between nodes; the APIs have their own limits
# Collect young objects less often than by default: a request creates few cycles, and none that live long.
GC_THRESHOLDS = (20_000, 20, 50)
STOP_STARTING_S = 10.0  # after which a start is cancelled once more


add_arguments = serve_arguments.add_arguments


def run(arguments: argparse.Namespace) -> int:
    settings = serve_arguments.settings_of(arguments)
    set_up_logging(settings)
    if settings.processes > 1:
        from batonq.cli.supervisor import Supervisor

        return asyncio.run(Supervisor(settings).run())
    return run_loop(serve(settings))


def run_loop(work: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # uvloop is faster, but not available everywhere
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def set_up_logging(settings: Settings, **always: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    as_json = settings.log_format == "json"
    text_formatter = events.TextFormatter(details=settings.log_level == "debug", **always)
    handler.setFormatter(events.JsonFormatter(**always) if as_json else text_formatter)
    limit = events.TracebackLimit()
    handler.addFilter(limit)
    logging.getLogger("asyncio").filters[:] = [limit]  # for its messages about callbacks that raise
    events.logger.handlers[:] = [handler]
    events.logger.setLevel(settings.log_level.upper())
    events.logger.propagate = False


async def serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    served = tls.load(settings) if settings.tls_cert else None
    listening = listen(settings)  # before the data directory is touched: a port that is taken leaves nothing behind
    created = is_new(settings)
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    ssl = served.context if served else None
    node: Node
    door: StartingDoor | None = None
    try:
        if settings.advertise:
            node = ClusterNode(settings, clock_off_max_ms=CLOCK_OFF_MAX_MS)
            node.on_name_taken = stop.set
            door = StartingDoor(node, limits_for(node), gate_of(settings, limits_for(node)))
            await start_listening(settings, door.server, listening, ssl)
            if not await start_unless_stopped(node, stop):
                if node.name_taken is not None:
                    raise node.name_taken
                await door.server.stop(0)
                events.info("stopped", "Stopped before the start was complete")
                return 0
            server = compose(node, door)
        else:
            node = Node(settings)
            await node.start()
    except BaseException:
        if door is not None:
            await door.server.stop(0)
        for each in listening:
            each.close()
        raise
    try:
        if not isinstance(node, ClusterNode):
            server = compose(node)
            await start_listening(settings, server, listening, ssl)
        url = address(server.scheme, settings.host, server.port)
        node.ownership.set_address(url)
        tell_serving(settings, url, created, shards=len(node.shards))
        settle_memory()
        server.prepare()
        with tls.renewed(node, server, served):
            await stop.wait()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(sign)  # a second signal ends the process at once
        if isinstance(node, ClusterNode) and node.name_taken is None:
            events.info("handing_over", "Handing over shards to the other nodes")
            await node.hand_over()
        events.info("stopping", "Stopping: new requests are refused, requests in progress are finished")
        server.stop_accepting()
        node.stop_waiting()
        await server.stop(settings.drain_s)
    finally:
        await node.stop()
    if isinstance(node, ClusterNode) and node.name_taken is not None:
        raise node.name_taken
    events.info("stopped", "Stopped cleanly")
    return 0


async def start_listening(
    settings: Settings, server: HttpServer, listening: list[socket.socket], ssl: SSLContext | None
) -> None:
    try:
        await server.start_on(listening, ssl=ssl)
    except OSError as problem:
        raise cannot_listen(settings, problem) from None


async def start_unless_stopped(node: Node, stop: asyncio.Event) -> bool:
    """Start a node. Returns False if it was told to stop before it had started."""
    loop = asyncio.get_running_loop()
    starting, stopping = loop.create_task(node.start()), loop.create_task(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            events.info("stopping", "Stopping although the start is not complete")
            return False
        starting.result()
        return True
    finally:
        await end(stopping)
        while not starting.done():  # a start that is cancelled closes what it has opened
            starting.cancel()
            await asyncio.wait((starting,), timeout=STOP_STARTING_S)


def tell_serving(settings: Settings, url: str, created: bool, **fields: int) -> None:
    profile = "development profile, signatures are not checked" if settings.dev else "secured profile"
    data = os.path.abspath(settings.data)
    text = f"Baton {__version__} serves {url} ({profile}), data in {data}{' (created)' if created else ''}"
    events.info("serving", text, url=url, data=data, created=created, **fields)
    events.info("start_here", f"Dashboard: {url}/ui   Connect with boto3, Python or curl: {url}/ui/start")


def is_new(settings: Settings) -> bool:
    """Whether the data directory does not exist yet."""
    return not os.path.exists(settings.data)


def listen(settings: Settings) -> list[socket.socket]:
    """Sockets that are bound to the server's address, and do not accept connections yet. Raises InvalidInput."""
    try:
        return bind(settings.host, settings.port)
    except OSError as problem:
        raise cannot_listen(settings, problem) from None


def settle_memory() -> None:
    """Objects that exist at the start live forever: exclude them from garbage collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def cannot_listen(settings: Settings, problem: OSError) -> InvalidInput:
    return InvalidInput(
        f"Cannot listen on {settings.host} port {settings.port}: {problem.strerror}. Choose another --port."
    )


def address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def compose(node: Node, door: StartingDoor | None = None) -> HttpServer:
    """The APIs of a node: SQS, REST under /v1, and the node's own pages. `door` is where it listens already."""
    settings = node.settings
    sqs = SqsApp(node.broker, SqsSettings(account=settings.account, public_url=settings.public_url), wall=node.time_s)
    rest = RestApp(node.broker, wall=node.time_s)
    cloudwatch = CloudWatchApp(NodeHistory(node.broker, rest), sqs.access)
    sns = SnsApp(node.broker, sqs.access)
    router = Router(sns.before(cloudwatch.before(sqs.handle)))
    router.mount_under("/service", cloudwatch.handle)
    router.mount_under("/v1", rest.handle)
    router.mount_under("/problems", rest.handle)
    direct = direct_under("/v1", rest.begin, sqs.begin)
    limits = limits_for(node)
    if isinstance(node, ClusterNode):
        internal = door.internal if door is not None else InternalApp(node.answering, node.secret)
        router.mount_under(PREFIX.rstrip("/"), internal.handle)
        direct = direct_under(PREFIX.rstrip("/"), internal.begin, direct)
    elif isinstance(node, ProcessNode):
        mount_status(router, node)
    access = DashboardAccess(node.broker)
    # `wall` is the clock of messages, which a development server can advance: pages say how long ago something was.
    ui = UiApp(rest, access, read_only=settings.read_only, wall=lambda: node.broker.now_ms() / 1000)
    gate = gate_of(settings, limits, ui.has_session)
    server = HttpServer(router.resolve, limits, direct, gate) if door is None else door.server
    server.resolve, server.direct, server.gate = router.resolve, direct, gate
    server.refusal = lambda target, status, text: rest.refusal(target, status, text) or plain(status, text, close=True)
    pages = Pages(node)
    server.prepare = ui.load_soon
    router.mount_under("/ui", ui.handle)
    router.mount("/", browsers_only(sqs, ui))
    node.metrics.sources.append(lambda: front_metrics(server, sqs, sns, rest))
    node.metrics.sources.append(lambda: [many(metrics.TRACE_SPANS, spans(node))])
    for path, methods, answer in pages.routes:
        router.mount(path, adapter(answer), methods)
    return server


def body_bytes_max(settings: Settings) -> int:
    """The maximum size of a request: a body grows at most threefold on the wire."""
    usual = HttpLimits().body_bytes_max
    return max(usual, 3 * settings.payload_bytes_max) if settings.payload_store else usual


def limits_for(node: Node) -> HttpLimits:
    limits = limits_of(node.settings)
    return replace(limits, body_bytes_max=CALL_BYTES_MAX) if isinstance(node, ClusterNode) else limits


def limits_of(settings: Settings) -> HttpLimits:
    return HttpLimits(
        body_bytes_max=body_bytes_max(settings),
        connections_max=settings.connections_max,
        requests_bytes_max=settings.requests_bytes_max,
        address_share=settings.address_part,
        body_rate_bytes_min=settings.body_rate_min_bytes,
    )


def gate_of(
    settings: Settings, limits: HttpLimits, has_session: Callable[[dict[bytes, bytes], bytes], bool] | None = None
) -> Gate:
    """Access control. Without a cluster secret, all nodes are on this machine and send no credentials."""
    if settings.dev:
        return LocalGate(limits, settings.own_hosts)
    trusting = bool(settings.advertise) and not settings.cluster_secret_file
    return CredentialGate(limits, (SIGNATURE_HEADER.encode(),), PREFIX.encode() if trusting else b"", has_session)


def mount_status(router: Router, node: ProcessNode) -> None:
    """Serve `baton cluster status` for a server with several processes too. Without a secret only the development
    profile answers: other users of this machine must not learn what signatures protect.
    """
    secret = read_secret(node.settings)
    if secret or node.settings.dev:
        app = InternalApp(node.answering, secret, only=frozenset({f"node/{STATUS}"}))
        router.mount_under(PREFIX.rstrip("/"), app.handle)


def compose_internal(node: ProcessNode) -> HttpServer:
    """The endpoints for the server's other processes, on a socket that only its user can open."""
    app = InternalApp(node.answering, b"", trusted=True)
    return HttpServer(Router(app.handle).resolve, HttpLimits(body_bytes_max=CALL_BYTES_MAX), app.begin)


def adapter(answer: Answer) -> Callable[[Request], Any]:
    async def handle(request: Request) -> Response:
        asked = Asked(
            method=request.method,
            path=request.path,
            address=f"{request.scheme}://{request.header(b'host', 'localhost')}",
            authorization=request.header(b"authorization"),
            content_type=request.header(b"content-type"),
            body=request.body,
        )
        page = await answer(asked)
        return Response(page.status, page.body, page.content_type, page.headers)

    return handle


GREETING = (
    f"Baton {__version__}: a message queue with an SQS-compatible API and a REST API. API reference: "
    "/v1/docs. Dashboard: open this URL in a browser."
)


def browsers_only(sqs: SqsApp, ui: UiApp) -> Callable[[Request], Any]:
    """At the root URL, SDKs get the API and browsers get the dashboard."""

    async def handle(request: Request) -> Response:
        if "text/html" in request.header(b"accept"):
            return await ui.handle(request)
        if request.method in ("GET", "HEAD") and not request.query:
            return plain(200, GREETING)
        return await sqs.handle(request)

    return handle


def spans(node: Node) -> list[tuple[str, float]]:
    tracing = node.broker.tracing
    export = tracing.export if tracing is not None else None
    return [(f'result="{name}"', getattr(export, name, 0)) for name in ("exported", "dropped", "failed")]
