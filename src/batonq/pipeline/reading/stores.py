"""The storage of an archive: a directory (file://) or an object store (s3://), through fsspec.

Writes are atomic: an object store writes an object at once, and in a directory a file is synced and then renamed.
"""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from batonq.errors import InvalidInput, LogError
from batonq.object_storage import UNFINISHED, open_arrow_s3, write_durably

SCHEMES = ("file", "s3")
UNFINISHED_KEPT_S = 3_600


class Store:
    """Named objects under one URL. Errors of the storage are raised as LogError with the URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._files, self._root, self._local = _open(self.url)

    def address(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self, folder: str = "") -> list[str]:
        """The names in a folder, without the folder's own name; empty if it does not exist."""
        path = f"{self._root}/{folder}".rstrip("/")
        try:
            self._files.invalidate_cache()
            found = self._files.ls(path, detail=False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error("cannot be listed", folder, error) from error
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def read(self, name: str) -> bytes:
        try:
            data: bytes = self._files.cat_file(f"{self._root}/{name}")
        except FileNotFoundError:
            raise LogError(
                f"{self.address(name)} does not exist. Restore it from a copy; Baton does not skip it."
            ) from None
        except OSError as error:
            raise self._error("cannot be read", name, error) from error
        return data

    def write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            if self._local:
                write_durably(path, data)
            else:
                with self._files.open(path, "wb") as file:
                    file.write(data)
        except OSError as error:
            raise self._error("cannot be written", name, error) from error

    def write_new(self, name: str, data: bytes) -> bool:
        """Write a new object; False if the name already exists, which is not changed.

        In a directory the first of two concurrent writers wins. An object store may accept both: their data must then
        be the same.
        """
        path = f"{self._root}/{name}"
        try:
            if self._local:
                return write_durably(path, data, replace=False)
            if name.rpartition("/")[2] in self.names(name.rpartition("/")[0]):
                return False
        except OSError as error:
            raise self._error("cannot be written", name, error) from error
        self.write(name, data)
        return True

    def sweep(self, folder: str) -> None:
        """Remove the leftovers of an interrupted copy. An object store has none."""
        path = f"{self._root}/{folder}"
        if not self._local or not os.path.isdir(path):
            return
        for entry in os.scandir(path):
            if entry.name.endswith(UNFINISHED) and time.time() - entry.stat().st_mtime > UNFINISHED_KEPT_S:
                os.unlink(entry.path)

    def _error(self, what: str, name: str, error: OSError) -> LogError:
        reason = " ".join((error.strerror or str(error)).split())[:300]
        return LogError(f"{self.address(name)} {what}: {reason}")


def check_url(url: str) -> None:
    """Raises InvalidInput, which says what an archive's URL must be."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES or (parts.scheme == "s3" and not parts.netloc):
        raise InvalidInput(f"The URL of an archive must be file:///directory or s3://bucket/prefix, not {url!r}.")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise InvalidInput(f"The directory must be an absolute path, as in file:///srv/archive, not {url!r}.")


def _open(url: str) -> tuple[Any, str, bool]:
    """(fsspec file system, root in it, whether it is a local directory)."""
    check_url(url)
    try:
        import fsspec
    except ImportError:
        raise InvalidInput("An archive needs fsspec: pip install 'batonq[spark]'.") from None
    parts = urlsplit(url)
    if parts.scheme == "file":
        return fsspec.filesystem("file"), os.path.normpath(unquote(parts.path)), True
    return open_arrow_s3(), f"{parts.netloc}{unquote(parts.path)}".rstrip("/"), False
