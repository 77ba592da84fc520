"""One process of `baton serve --processes N`, started and controlled by the supervisor (supervisor.py).

    python -m batonq.cli.process HANDLE

HANDLE is the socket to the supervisor. It carries one JSON object per line: first the settings, then which processes
are `up`, and finally `stop`: first `requests`, and when all processes have finished theirs, `all`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from batonq.api.http import HttpServer
from batonq.cli import tls
from batonq.cli.exit_with_parent import die_with
from batonq.cli.serve import compose, compose_internal, run_loop, set_up_logging, settle_memory
from batonq.core.limits import ShardLimits
from batonq.errors import BatonError
from batonq.log.cancellation import end
from batonq.node import events
from batonq.node.cluster.peers import short_path
from batonq.node.processes.node import ProcessNode
from batonq.node.processes.place import Place, ToldOwners, socket_path
from batonq.node.settings import Settings

LINE_BYTES_MAX = 1 << 20
INTERNAL_S = 1.0  # for requests from other processes while all stop
OTHERS_S = 10.0  # in addition to the time for requests in progress


def main(handle: int) -> int:
    control = socket.socket(fileno=handle)
    control.set_inheritable(False)
    with control.makefile("rb", buffering=0) as lines:
        task = json.loads(lines.readline() or b"{}")
    if not task:
        return 1  # the supervisor has exited
    os.set_inheritable(task["lock"], False)
    die_with(task["parent"])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the supervisor, which stops all processes in order
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # replaced when there is a certificate to reload
    limits = ShardLimits(**task["settings"].pop("shard_limits"))
    settings = Settings(**task["settings"], shard_limits=limits)
    place = Place(settings.data, task["number"], settings.processes)
    set_up_logging(settings, process=place.name)
    try:
        return run_loop(Process(settings, place, control).run())
    except BatonError as problem:
        print(f"baton: process {place.name}: {problem.message}", file=sys.stderr)
        return 1


class Process:
    def __init__(self, settings: Settings, place: Place, control: socket.socket) -> None:
        self._settings = settings
        self._place = place
        self._control = control
        self._writer: asyncio.StreamWriter
        self._node: ProcessNode
        self._internal: HttpServer | None = None
        self._owners: ToldOwners
        self._stop_requests: asyncio.Event
        self._stop_all: asyncio.Event

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        self._stop_requests, self._stop_all = asyncio.Event(), asyncio.Event()
        reader, self._writer = await asyncio.open_unix_connection(sock=self._control, limit=LINE_BYTES_MAX)
        self._owners = ToldOwners(self._place)
        hearing = loop.create_task(self._hear(reader))
        self._node = ProcessNode(self._settings, self._place, self._owners, self._announce)
        try:
            await self._node.start()
            loop.add_signal_handler(signal.SIGTERM, self._stop_alone)
            await self._serve()
        finally:
            if self._internal is not None:
                await self._internal.stop(INTERNAL_S)
            await self._node.stop()
            await end(hearing)
            self._writer.close()
        events.debug("process_stopped", "Stopped cleanly")
        return 0

    async def _serve(self) -> None:
        settings, node = self._settings, self._node
        server = compose(node)
        served = tls.load(settings) if settings.tls_cert else None
        await server.start(settings.host, settings.port, ssl=served.context if served else None, reuse_port=True)
        shards = [keeper.number for keeper in node.shards if keeper.serving]
        events.debug("process_serving", f"Process {self._place.name} is ready", pid=os.getpid(), shards=shards)
        self._say("serving")
        settle_memory()
        server.prepare()
        with tls.renewed(node, server, served):
            await self._stop_requests.wait()
        server.stop_accepting()
        node.stop_waiting()
        await server.stop(settings.drain_s)
        self._say("drained")
        with suppress(TimeoutError):
            async with asyncio.timeout(settings.drain_s + OTHERS_S):
                await self._stop_all.wait()

    def _stop_alone(self) -> None:
        """A signal stops this process but not the server: the supervisor starts a new one."""
        self._stop_requests.set()
        self._stop_all.set()

    # --- with the supervisor and the others -----------------------------------------------------------

    def _say(self, what: str) -> None:
        self._writer.write(json.dumps({"say": what}).encode() + b"\n")

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                self._obey(json.loads(line))
        os._exit(1)  # the supervisor has exited: the same as if it had been killed together with this process

    def _obey(self, said: dict[str, Any]) -> None:
        if "up" in said:
            self._owners.tell({int(number): start for number, start in said["up"].items()})
        elif said.get("stop") == "requests":
            self._stop_requests.set()
        elif said.get("stop") == "all":
            self._stop_all.set()

    async def _announce(self) -> None:
        self._internal = compose_internal(self._node)
        await self._internal.start_here(listen_here(socket_path(self._place.data, self._place.number)))
        self._say("answering")


def listen_here(path: str) -> socket.socket:
    """A socket that only this user can open. A socket file that a previous process left is removed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        with short_path(path) as short:
            listening.bind(short)
    except BaseException:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
