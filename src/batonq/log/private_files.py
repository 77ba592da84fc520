"""Upgrades data directories of older releases: files that a group could read become private to the server's user."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from batonq.log.disk import DIRECTORY_MODE, FILE_MODE, RealDisk
from batonq.log.layout import EPOCH, IDENTITY, LOCK, log_directories

OLD_DIRECTORY_MODE = 0o750


def make_private(data_directory: str) -> None:
    """Restrict the files and logs of a data directory. Files of another user are not changed.

    The directory itself keeps its mode, because it may contain more than Baton's files.
    """
    if stat.S_IMODE(os.stat(data_directory).st_mode) == OLD_DIRECTORY_MODE:
        _restrict(data_directory, DIRECTORY_MODE)
    for name in (LOCK, IDENTITY, EPOCH):
        _restrict(os.path.join(data_directory, name), FILE_MODE)
    for log_directory in log_directories(RealDisk(), data_directory).values():
        for directory, _, names in os.walk(log_directory):
            _restrict(directory, DIRECTORY_MODE)
            for name in names:
                _restrict(os.path.join(directory, name), FILE_MODE)


def _restrict(path: str, mode: int) -> None:
    with suppress(FileNotFoundError, PermissionError):
        found = os.lstat(path).st_mode
        if stat.S_IMODE(found) & ~mode & 0o777 and not stat.S_ISLNK(found):
            os.chmod(path, mode)
