"""`baton serve --processes N`: starts the processes, tells each which others are up, and restarts one that died.

The supervisor owns the data directory and serves no requests. Each process is connected to it by a socket, and exits
when that socket closes. All processes inherit the lock of the directory, so no other server can use the directory while
one of them may still write. A process is restarted only after its predecessor has exited.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from batonq.cli.serve import address, cannot_listen, is_new, tell_serving
from batonq.errors import Unavailable
from batonq.log.ownership import LockFileOwnership
from batonq.node import events
from batonq.node.operations.admin_token import load_or_make_token
from batonq.node.processes.place import name_of, socket_path
from batonq.node.settings import Settings

AGAIN_FIRST_S = 0.1
AGAIN_MAX_S = 10.0
STEADY_S = 30.0  # a process that was up for this long is restarted without a pause
STOP_S = 10.0  # in addition to the time for requests in progress


class Child:
    """One process: its current run, if any."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = name_of(number)
        self.process: subprocess.Popen[bytes] | None = None
        self.control: asyncio.StreamWriter | None = None
        self.start = 0  # number of its last start, counted over all processes
        self.answering = False  # other processes may send it requests
        self.serving = False
        self.drained = False
        self.served_s = 0.0  # when it became ready
        self.pause_s = AGAIN_FIRST_S

    def say(self, **what: Any) -> None:
        if self.control is not None and not self.control.is_closing():
            self.control.write(json.dumps(what).encode() + b"\n")


class Supervisor:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._ownership = LockFileOwnership(settings.data)
        self._children = [Child(number) for number in range(settings.processes)]
        self._starts = 0
        self._changed = asyncio.Event()
        self._stop = asyncio.Event()
        self._all_served = False
        self._created = False  # whether the data directory is new
        self._failure = ""
        self._works: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sign, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        with reserve(self._settings) as taken:  # before the data directory is touched
            self._settings = replace(self._settings, port=taken.getsockname()[1])
            self._created = is_new(self._settings)
            self._ownership.take()
            try:
                load_or_make_token(self._settings.data, os.urandom)
                for child in self._children:
                    self._spawn(self._keep(child))
                try:
                    await self._until_serving()
                    await self._stop.wait()
                finally:
                    for sign in (signal.SIGTERM, signal.SIGINT):
                        loop.remove_signal_handler(sign)  # a second signal ends all processes at once
                    await self._end()
            finally:
                self._ownership.close()
        events.info("stopped", "Stopped cleanly")
        return 0

    def _renew(self) -> None:
        """On SIGHUP: every process reloads its certificate."""
        for child in self._children:
            if child.process is not None and child.serving:
                child.process.send_signal(signal.SIGHUP)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._works.add(task)
        task.add_done_callback(self._works.discard)

    async def _wait(self, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the condition holds; False on timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until_serving(self) -> None:
        """At the first start: if one process fails, the start fails."""

        def over() -> bool:
            return self._stop.is_set() or bool(self._failure) or all(child.serving for child in self._children)

        stopped = asyncio.get_running_loop().create_task(self._stop.wait())
        stopped.add_done_callback(lambda _: self._tell_changed())
        try:
            await self._wait(over)
        finally:
            stopped.cancel()
        if self._failure:
            raise Unavailable(self._failure)
        if not self._stop.is_set():
            self._all_served = True
            url = address("https" if self._settings.tls_cert else "http", self._settings.host, self._settings.port)
            self._ownership.set_address(url)
            count = len(self._children)
            tell_serving(self._settings, url, self._created, processes=count, shards=self._settings.shards)

    # --- one process ------------------------------------------------------------------------------

    async def _keep(self, child: Child) -> None:
        """Start the process, and restart it whenever it exits, until the server stops."""
        while not self._stop.is_set():
            try:
                code = await self._live(child)
            except OSError as problem:
                events.error("process_failed", f"Process {child.name} could not be started: {problem}")
                code = -1
            self._note(child)
            if self._stop.is_set():
                return
            if not self._all_served:
                self._failure = f"Process {child.name} did not start (it exited with code {code}); see its output."
                self._tell_changed()
                return
            steady = child.served_s and asyncio.get_running_loop().time() - child.served_s > STEADY_S
            child.pause_s = AGAIN_FIRST_S if steady else child.pause_s
            events.warning(
                "process_ended",
                f"Process {child.name} exited with code {code}; it will be restarted in {child.pause_s:g} s",
                process=child.name,
                code=code,
            )
            with suppress(TimeoutError):
                async with asyncio.timeout(child.pause_s):
                    await self._stop.wait()
            child.pause_s = min(child.pause_s * 2, AGAIN_MAX_S)

    async def _live(self, child: Child) -> int:
        """Run the process from its start to its exit."""
        ours, theirs = socket.socketpair()
        self._starts += 1
        child.start, child.served_s = self._starts, 0.0
        with theirs:
            child.process = self._start(theirs.fileno())
        ended = self._watch(child.process)
        reader, child.control = await asyncio.open_unix_connection(sock=ours)
        child.say(
            settings=asdict(self._settings),
            number=child.number,
            parent=os.getpid(),
            lock=self._ownership.lock_handle,
        )
        child.say(up=self._up())
        hearing = asyncio.get_running_loop().create_task(self._hear(child, reader))
        try:
            return await ended
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            child.control.close()

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "batonq.cli.process", str(control)]
        handles = (control, self._ownership.lock_handle)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=handles)

    @staticmethod
    def _watch(process: subprocess.Popen[bytes]) -> asyncio.Future[int]:
        """The exit code, when the process has exited. No thread is used, because a child is tied to the thread that
        started it.
        """
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[int] = loop.create_future()
        handle = os.pidfd_open(process.pid)

        def look() -> None:
            loop.remove_reader(handle)
            os.close(handle)
            code = process.wait()
            if not ended.done():
                ended.set_result(code)

        loop.add_reader(handle, look)
        return ended

    async def _hear(self, child: Child, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            said = json.loads(line)["say"]
            if said == "answering":
                child.answering = True
                self._tell_up()
            elif said == "serving":
                child.serving = True
                child.served_s = asyncio.get_running_loop().time()
            elif said == "drained":
                child.drained = True
            self._tell_changed()

    def _note(self, child: Child) -> None:
        """Record the exit of the process."""
        child.process = child.control = None
        child.answering = child.serving = child.drained = False
        self._tell_up()
        self._tell_changed()

    def _up(self) -> dict[int, int]:
        """The processes that accept requests, with the number of their start."""
        return {child.number: child.start for child in self._children if child.answering}

    def _tell_up(self) -> None:
        for child in self._children:
            child.say(up=self._up())

    # --- stopping -----------------------------------------------------------------------------------

    async def _end(self) -> None:
        """First all processes finish their requests, for which they need each other; then all stop."""
        self._stop.set()
        patience_s = self._settings.drain_s + STOP_S
        events.info("stopping", "Stopping: new requests are refused, requests in progress are finished")
        for child in self._children:
            if child.process is not None and not child.serving:
                child.process.kill()  # it has accepted nothing yet
            child.say(stop="requests")
        await self._wait(lambda: all(child.drained or child.process is None for child in self._children), patience_s)
        for child in self._children:
            child.say(stop="all")
        if not await self._wait(lambda: all(child.process is None for child in self._children), patience_s):
            for child in self._children:
                if child.process is not None:
                    events.warning("process_killed", f"Process {child.name} does not stop; killing it")
                    child.process.kill()
        await asyncio.gather(*self._works)
        for child in self._children:
            with suppress(OSError):
                os.unlink(socket_path(self._settings.data, child.number))


def reserve(settings: Settings) -> socket.socket:
    """Reserve the address on which all processes will listen.

    Sockets that share a port can belong to different programs, so the address is first bound exclusively.
    """
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, where = found[0]
        with socket.socket(family, socket.SOCK_STREAM) as alone:
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(where)
            where = alone.getsockname()
        shared = socket.socket(family, socket.SOCK_STREAM)
        try:
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            shared.bind(where)
        except BaseException:
            shared.close()
            raise
    except OSError as problem:
        raise cannot_listen(settings, problem) from None
    return shared
