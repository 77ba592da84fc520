"""One thread that runs a log's commits while the loop does other work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

CallSoon = Callable[..., object]  # for example an event loop's call_soon_threadsafe
Job = Callable[[], None]
Then = Callable[[BaseException | None], None]


class Worker:
    """Runs jobs in order; `then` is called on the loop, through `call_soon`, with the job's error or None."""

    def __init__(self, call_soon: CallSoon) -> None:
        self._call_soon = call_soon
        self._jobs: SimpleQueue[tuple[Job, Then] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Job, then: Then) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="baton-commit", daemon=True)
            self._thread.start()
        self._jobs.put((job, then))

    def close(self) -> None:
        """Wait for the submitted jobs."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, then = item
            error: BaseException | None = None
            try:
                job()
            except BaseException as raised:
                error = raised
            self._call_soon(then, error)
