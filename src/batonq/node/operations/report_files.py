"""The pipeline's reports: HTML files in a directory that the setting `reports` names."""

from __future__ import annotations

import asyncio
import os
import re
import stat
from operator import attrgetter
from typing import NamedTuple

from batonq.errors import NotFound

FILES_MAX = 500  # the newest are listed
ENTRIES_MAX = 10_000  # of the directory
BYTES_MAX = 32 << 20
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,119}\.html")


class ReportFile(NamedTuple):
    name: str
    bytes: int
    modified_ms: int


class ReportFiles:
    """Lists and reads the reports. Links and other kinds of files are ignored."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def listed(self) -> list[ReportFile]:
        """The newest first."""
        return await asyncio.to_thread(self._list) if self._directory else []

    async def read(self, name: str) -> bytes:
        if not self._directory or not _NAME.fullmatch(name):
            raise _missing(name)
        return await asyncio.to_thread(self._read, name)

    def _list(self) -> list[ReportFile]:
        found: list[ReportFile] = []
        try:
            with os.scandir(self._directory) as entries:
                for count, entry in enumerate(entries):
                    if count >= ENTRIES_MAX:
                        break
                    if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(ReportFile(entry.name, status.st_size, int(status.st_mtime * 1000)))
        except OSError as problem:
            raise NotFound(f"The directory of reports cannot be read: {problem.strerror}.") from None
        return sorted(found, key=attrgetter("modified_ms"), reverse=True)[:FILES_MAX]

    def _read(self, name: str) -> bytes:
        try:
            handle = os.open(os.path.join(self._directory, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            raise _missing(name) from None
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise _missing(name)
            with open(handle, "rb", closefd=False) as file:
                data = file.read(BYTES_MAX + 1)
        finally:
            os.close(handle)
        if len(data) > BYTES_MAX:
            raise NotFound(f"Report {name} is larger than {BYTES_MAX >> 20} MiB. Open the file itself.")
        return data


def _missing(name: str) -> NotFound:
    return NotFound(f"There is no report {name[:120]!r}. GET /v1/reports lists the reports.")
