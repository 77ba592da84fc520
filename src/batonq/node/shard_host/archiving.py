"""Archives logs from a node: a child process copies sealed segments, and a log is not shortened before that.

Nothing of the archive (fsspec, Arrow) is imported here. Serving the queues has precedence over their history. Beyond a
limit, or on a full disk, the oldest part of the log is deleted without having been archived. An alarm then names the
frames that are missing in the archive.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Awaitable, Callable

from batonq.errors import InvalidInput
from batonq.log.interface import Log, Room
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.settings import Settings

TIMEOUT_S = 3_600
RETRY_AFTER_MS = 10_000
ERROR_TEXT_MAX = 500

Copy = Callable[[int], Awaitable[tuple[int, str]]]  # shard → (first frame that is not archived, what is wrong)


class Archiving:
    """One per node. `step` starts a copy when there is something to copy; `until` limits how far a log is truncated."""

    def __init__(
        self, settings: Settings, alarms: AlarmBook, now_ms: Callable[[], int], copy: Copy | None = None
    ) -> None:
        self.done: dict[int, int] = {}  # per shard: the first frame that is not archived, as far as is known
        self.segments: dict[int, int] = {}  # per shard: segments copied, or found archived, since the start
        self.failures: dict[int, int] = {}
        self._settings = settings
        self._alarms = alarms
        self._now_ms = now_ms
        self._copy = copy or ArchiveProcess(settings.data, settings.archive, settings.segment_bytes).copy
        self._task: asyncio.Task[None] | None = None  # one copy at a time
        self._not_before_ms: dict[int, int] = {}
        self._looked: dict[int, tuple[Log, int]] = {}  # per shard: the end of the sealed log at the last copy

    def step(self, shard: int, log: Log) -> None:
        """Start a copy if a sealed segment is not in the archive.

        Nothing is started if the sealed log has not grown since the last copy: the rest of a mirror may be too short
        for a piece of the archive.
        """
        if self._task is not None and self._task.done():
            self._task = None
        if self._task is not None or self._now_ms() < self._not_before_ms.get(shard, 0):
            return
        sealed = max((segment.stop for segment in log.segments() if segment.sealed), default=0)
        if sealed > self.done.get(shard, 0) and self._looked.get(shard) != (log, sealed):
            self._looked[shard] = (log, sealed)
            self._task = asyncio.get_running_loop().create_task(self._run(shard, log))

    async def _run(self, shard: int, log: Log) -> None:
        done, problem = await self._copy(shard)
        if problem:
            self.failures[shard] = self.failures.get(shard, 0) + 1
            self._not_before_ms[shard] = self._now_ms() + RETRY_AFTER_MS
            text = f"Shard {shard} cannot be archived to {self._settings.archive}: {problem}"
            self._looked.pop(shard, None)
            self._alarms.put("archive-failing", text, of=shard)
            events.warning("archive_failed", text, shard=shard)
            return
        self._alarms.clear("archive-failing", shard)
        before = self.done.get(shard, 0)
        if done > before:
            copied = sum(segment.sealed and before < segment.stop <= done for segment in log.segments())
            self.segments[shard] = self.segments.get(shard, 0) + copied
            self.done[shard] = done
            events.info("archived", f"Shard {shard} is archived up to frame {done - 1}", shard=shard)

    def behind_bytes(self, log: Log) -> int:
        """Size of the sealed log that is not in the archive."""
        done = self.done.get(log.shard, 0)
        return sum(segment.bytes for segment in log.segments() if segment.sealed and segment.stop > done)

    def until(self, log: Log, until: int) -> int:
        """The frame up to which (exclusive) the log may be deleted, when the caller wants `until`."""
        done = self.done.get(log.shard, 0)
        if until <= done:
            return until
        waiting_bytes = self.behind_bytes(log)
        if waiting_bytes <= self._settings.archive_backlog_bytes and log.room() is Room.PLENTY:
            return log.droppable(max(done, log.first))
        first = max(log.first, done)
        text = (
            f"Shard {log.shard} deleted frames {first} to {until - 1} without having archived them: the archive "
            f"is {waiting_bytes} bytes behind (--archive-backlog-bytes), or the disk is full."
        )
        self._alarms.put("archive-behind", text, of=log.shard)
        return until

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class ArchiveProcess:
    """Copies segments in a child process; see batonq.pipeline.reading.archiver."""

    def __init__(self, data_directory: str, url: str, segment_bytes: int) -> None:
        for name in ("fsspec", "pyarrow") if url.startswith("s3:") else ("fsspec",):
            if importlib.util.find_spec(name) is None:
                raise InvalidInput(f"The archive {url} needs the package {name}: pip install 'batonq[spark]'.")
        self._data_directory = os.path.abspath(data_directory)
        self._url = url
        self._segment_bytes = segment_bytes

    async def copy(self, shard: int) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "batonq.pipeline.reading.archiver",
            self._data_directory,
            str(shard),
            self._url,
            str(self._segment_bytes),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        try:
            said, wrong = await asyncio.wait_for(process.communicate(), TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()
            return 0, f"it took longer than {TIMEOUT_S} s"
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode == 0 and said.strip().isdigit():
            return int(said), ""
        text = wrong.decode(errors="replace").strip()[-ERROR_TEXT_MAX:]
        return 0, text or f"the copying process exited with code {process.returncode}"
