"""A handler in its own process: for CPU-bound work, and for work that may crash.

The child receives messages through a pipe, one at a time, and answers each. When it dies (a segmentation fault,
os._exit, the kernel's out-of-memory killer), the pipe is closed: the message fails with HandlerCrashed, and the next
message gets a new child. When the worker dies, the pipe is closed too, and the child exits after its message.
"""

from __future__ import annotations

import asyncio
import inspect
import multiprocessing
import pickle
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from batonq.worker.errors import HandlerCrashed, class_name, reason
from batonq.worker.source import Message

# Not fork: a child of a process with threads and an event loop may inherit a lock that is never released.
_SPAWN = multiprocessing.get_context("spawn")
_JOIN_S = 5.0


class HandlerFailed(Exception):
    """Replaces a handler's exception that could not be pickled: its class and text."""

    def __init__(self, text: str, error_class: str) -> None:
        super().__init__(text)
        self.error_class = error_class

    def __reduce__(self) -> tuple[type[HandlerFailed], tuple[str, str]]:
        return HandlerFailed, (str(self), self.error_class)


def plain(message: Message) -> Message:
    """A copy of the message without its client, which works only in this process."""
    if type(message) is Message:
        return message
    return Message(**{name: getattr(message, name) for name in Message.__struct_fields__})


class InProcess:
    """Runs the handler in a child process, which is started on demand and kept."""

    def __init__(self, handler: Callable[[Any], Any], crashed: Callable[[], None]) -> None:
        self._handler = handler
        self._crashed = crashed
        self._process: SpawnProcess | None = None
        self._pipe: Connection | None = None
        self._killed = False

    def perform(self, given: Any) -> Any:
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send([plain(each) for each in given] if isinstance(given, list) else plain(given))
            succeeded, value = self._pipe.recv()
        except (EOFError, OSError):
            raise self._obituary("the handler's process") from None
        if succeeded:
            return value
        raise value

    def kill(self) -> bool:
        process = self._process
        self._killed = True
        if process is not None:
            process.kill()
        return True

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        if self._process is not None:
            self._process.join(_JOIN_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._process.close()
            self._process = None

    # ---

    def _start(self) -> None:
        self.close()
        self._pipe, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=_child, args=(theirs, self._handler), name="baton-handler")
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._process = None
            raise HandlerCrashed(
                f"a handler that runs in a process must be a function at the top level of a module: {error}"
            ) from None
        finally:
            theirs.close()
        if self._killed:  # while it was being started
            self._process.kill()
        try:
            self._pipe.recv()  # it has imported the handler's module
        except (EOFError, OSError):
            raise self._obituary(
                "the handler's process could not import the handler (see standard error), and"
            ) from None

    def _obituary(self, who: str) -> HandlerCrashed:
        assert self._process is not None
        self._process.join(_JOIN_S)
        code = self._process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with code {code}"
        if not self._killed:
            self._crashed()
        return HandlerCrashed(f"{who} {how}")


def _child(pipe: Connection, handler: Callable[[Any], Any]) -> None:
    """The main function of the child. A signal to the process group (Ctrl-C) is left to the worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pipe.send(True)
    with asyncio.Runner() as runner:
        while True:
            try:
                given = pipe.recv()
            except (EOFError, OSError):
                return
            try:
                value = handler(given)
                if inspect.iscoroutine(value):
                    value = runner.run(value)
                answer: tuple[bool, Any] = (True, value)
            except BaseException as error:  # SystemExit too: it counts as a failure of the handler, not as a crash
                answer = (False, portable(error))
            _answer(pipe, answer)


def _answer(pipe: Connection, answer: tuple[bool, Any]) -> None:
    try:
        pipe.send(answer)
    except (pickle.PicklingError, AttributeError, TypeError):  # the handler's result is not sent; the message is done
        pipe.send((True, None))
    except OSError:
        return  # the worker has gone; the message's lease will expire


def portable(error: BaseException) -> BaseException:
    """The exception itself if it can be pickled, otherwise its class and text."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # whatever a class raises when it is pickled
        pass
    return HandlerFailed(reason(error), class_name(error))
