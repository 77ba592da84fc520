"""`baton serve`: put a node and its front doors together, and run them until somebody says stop."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import Field
from typing import Any

from batonq import __version__
from batonq.api.http import HttpLimits, HttpServer, Request, Response, Router, express_under
from batonq.api.http.messages import plain
from batonq.api.internal import InternalApp
from batonq.api.rest import ExpressRest, RestApp
from batonq.api.sqs import ExpressSqs, SqsApp, SqsSettings
from batonq.cli import tls
from batonq.cli.quantities import parse_bytes
from batonq.errors import InvalidInput
from batonq.node import events, metrics
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import PREFIX
from batonq.node.node import Node
from batonq.node.pages import Answer, Asked, Pages
from batonq.node.settings import LOG_VARIABLE, Settings, documented

COMMON = {
    "host",
    "port",
    "data",
    "tls_cert",
    "tls_key",
    "account",
    "public_url",
    "shards",
    "log_level",
    "log_format",
    "history_hours",
    "history_bytes",
    "archive",
}
CHOICES = {"log_level": ("debug", "info", "warning", "error"), "log_format": ("text", "json")}
# Young objects are looked at less often than Python would: a request makes few cycles, and none that live.
CALL_BYTES_MAX = 8 * 1024 * 1024  # of a call between nodes; the front doors have limits of their own
GC_THRESHOLDS = (20_000, 20, 50)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One flag for every setting."""
    profile = parser.add_mutually_exclusive_group()
    profile.add_argument(
        "--dev", action="store_false", dest="secure", help="development profile: no signatures (default on loopback)"
    )
    profile.add_argument("--secure", action="store_true", help="secured profile: every request is signed by a key")
    parser.set_defaults(secure=None)
    tuning = parser.add_argument_group("tuning")
    for entry, doc in documented():
        if entry.name == "secure":
            continue
        group = parser if entry.name in COMMON else tuning
        default = "" if entry.default in (None, "") else f" (default {entry.default})"
        group.add_argument(
            "--" + entry.name.replace("_", "-"),
            type=_type_of(entry),
            default=os.environ.get(LOG_VARIABLE, "") if entry.name == "log" else entry.default,
            choices=CHOICES.get(entry.name),
            metavar=None if entry.name in CHOICES else _type_of(entry).__name__.removeprefix("parse_").upper(),
            help=doc.replace("%", "%%") + default,
        )


def _type_of(entry: Field[Any]) -> Callable[[str], Any]:
    if entry.name.endswith("_bytes") or "bytes" in entry.name:
        return parse_bytes
    name = str(entry.type)
    if name.startswith("int"):
        return int
    return float if name.startswith("float") else str


def run(arguments: argparse.Namespace) -> int:
    settings = Settings(**{entry.name: getattr(arguments, entry.name) for entry, _ in documented()})
    settings.check()
    set_up_logging(settings)
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:  # it is quicker, and not everywhere
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(serve(settings))


def set_up_logging(settings: Settings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(events.JsonFormatter() if settings.log_format == "json" else events.TextFormatter())
    events.logger.handlers[:] = [handler]
    events.logger.setLevel(settings.log_level.upper())
    events.logger.propagate = False


async def serve(settings: Settings) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    served = tls.load(settings) if settings.tls_cert else None
    certificate: tls.Certificate | None = None
    for sign in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sign, stop.set)
    node = ClusterNode(settings) if settings.advertise else Node(settings)
    await node.start()
    try:
        server = compose(node)
        try:
            await server.start(settings.host, settings.port, ssl=served.context if served else None)
        except OSError as problem:
            raise InvalidInput(
                f"Cannot listen on {settings.host} port {settings.port}: {problem.strerror}. Choose another --port."
            ) from None
        if served is not None:
            certificate = tls.Certificate(node, server, served)
            loop.add_signal_handler(signal.SIGHUP, certificate.reload_soon)
        url = address(server.scheme, settings.host, server.port)
        node.ownership.set_address(url)
        profile = "development profile, signatures are not checked" if settings.dev else "secured profile"
        text = f"Baton {__version__} serves {url} ({profile}), data in {settings.data}"
        events.info("serving", text, url=url, shards=len(node.shards))
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        await stop.wait()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(sign)  # a second one ends the process at once
        if isinstance(node, ClusterNode):
            events.info("handing_over", "Handing over to the other nodes")
            await node.hand_over()
        events.info("stopping", "Stopping: no new requests, answering those under way")
        server.stop_accepting()
        node.stop_waiting()
        await server.stop(settings.drain_s)
    finally:
        if certificate is not None:
            loop.remove_signal_handler(signal.SIGHUP)
            certificate.close()
        await node.stop()
    events.info("stopped", "Stopped cleanly")
    return 0


def address(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def compose(node: Node) -> HttpServer:
    """The front doors of a node: the SQS API, REST under /v1, and the node's own pages."""
    settings = node.settings
    sqs = SqsApp(node.broker, SqsSettings(account=settings.account, public_url=settings.public_url), wall=node.time_s)
    rest = RestApp(node.broker, wall=node.time_s)
    router = Router(sqs.handle)
    router.mount_under("/v1", rest.handle)
    router.mount_under("/problems", rest.handle)
    express = express_under("/v1", ExpressRest(rest), ExpressSqs(sqs))
    limits = HttpLimits(connections_max=settings.connections_max)
    if isinstance(node, ClusterNode):
        router.mount_under(PREFIX.rstrip("/"), InternalApp(node.answering, node.secret).handle)
        limits = HttpLimits(connections_max=settings.connections_max, body_bytes_max=CALL_BYTES_MAX)
    server = HttpServer(router.resolve, limits, express)
    server.refusal = lambda target, status, text: rest.refusal(target, status, text) or plain(status, text, close=True)
    pages = Pages(node)
    pages.more_metrics = lambda: front_metrics(server, sqs, rest)
    for path, methods, answer in pages.routes:
        if path == "/":
            router.mount(path, browsers_only(sqs, answer), methods)
        else:
            router.mount(path, adapter(answer), methods)
    return server


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


def browsers_only(sqs: SqsApp, answer: Answer) -> Callable[[Request], Any]:
    """The root is the API's for SDKs, and a page for people."""
    page = adapter(answer)

    async def handle(request: Request) -> Response:
        if "text/html" in request.header(b"accept"):
            response: Response = await page(request)
            return response
        return await sqs.handle(request)

    return handle


def front_metrics(server: HttpServer, sqs: SqsApp, rest: RestApp) -> bytes:
    lines: list[str] = []
    counters = server.counters
    metrics.block(lines, metrics.HTTP_CONNECTIONS, [("", server.connections_open)])
    metrics.block(lines, metrics.HTTP_REQUESTS, [("", counters.requests)])
    metrics.block(lines, metrics.HTTP_REFUSED, [("", counters.refused_requests)])
    metrics.block(lines, metrics.HTTP_FAILURES, [("", counters.failures)])
    calls = [(f'operation="{name}"', count) for name, count in sqs.calls.items()]
    metrics.block(lines, metrics.SQS_CALLS, calls)
    metrics.block(lines, metrics.SQS_ERRORS, [(f'code="{code}"', count) for code, count in sorted(sqs.errors.items())])
    calls = [(f'operation="{name}"', count) for name, count in rest.calls.items()]
    metrics.block(lines, metrics.REST_CALLS, calls)
    metrics.block(
        lines, metrics.REST_ERRORS, [(f'code="{code}"', count) for code, count in sorted(rest.errors.items())]
    )
    lines.append("")
    return "\n".join(lines).encode()
