"""A store for bodies that are too large for a queue: a directory (file://), an object store (s3://) or any other
storage that fsspec knows.

An object is named after its content and the hour in which it was written: `2026111722/<SHA-256>`. A sender always
writes into the folder of the current hour, and a sweeper deletes only from folders of hours that ended long ago, so a
sender never relies on an object that a sweeper is about to delete.

Clients write into folders of their own: `client/<cluster>/2026111722/<SHA-256>` if the store belongs to the servers
of a cluster, which delete these objects too, and `client/2026111722/<SHA-256>` if it belongs to nobody. So a server can
tell from a pointer whether it or another server deletes the object.

All methods block: call them on a thread.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from urllib.parse import unquote, urlsplit

from batonq.errors import InvalidInput, PayloadDamaged, PayloadStoreUnavailable
from batonq.object_storage import UNFINISHED, open_arrow_s3, s3_endpoint, write_durably

THRESHOLD_BYTES = 256 * 1024  # default size above which a body goes to the store
HOUR_S = 3600
SETTLE_S = HOUR_S  # how long after the end of an hour objects may still be sent that were written in it
OWNER = "baton-store"  # names the cluster that deletes what it no longer needs
CLIENT = "client"  # folder of what clients have written
SCHEMES = ("file", "memory", "s3", "gs", "abfs", "az")
_KEY = re.compile(rf"(?:{CLIENT}/(?:[0-9a-f]{{1,32}}/)?)?[0-9]{{10}}/[0-9a-f]{{64}}")
_HOUR = re.compile(r"[0-9]{10}")
_OWNER = re.compile(r"cluster ([0-9a-f]{1,32})")


class PayloadStore:
    """Objects below one URL."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self.url = check_url(url)
        self._clock = clock
        self._files, self._root = _open(self.url)
        self._local = urlsplit(self.url).scheme == "file"
        self._arrow = type(self._files).__name__ == "ArrowFSWrapper"
        # Arrow opens a stream that cannot seek if a read begins at 0, and then seeks.
        self._range_options = {"seekable": True} if self._arrow else {}

    # --- objects

    def put(self, body: bytes, folder: str = "") -> str:
        """Store a body, for a client in its folder; returns its key."""
        key = f"{in_folder(folder, hour_of(self._clock()))}/{sha256(body).hexdigest()}"
        self._write(key, body)
        return key

    def get(self, key: str, size: int) -> bytes:
        """The body with this key and length. Raises PayloadDamaged if the object is missing or another one."""
        if not _KEY.fullmatch(key):
            raise PayloadDamaged(f"{key[:100]!r} is not the key of an object in the payload store {self.url}.")
        body = self._read(key, size)
        if len(body) != size or sha256(body).hexdigest() != key.rpartition("/")[2]:
            raise PayloadDamaged(
                f"The object {key} in the payload store {self.url} is not what was sent: it was changed or damaged."
            )
        return body

    def get_named(self, name: str, size: int) -> bytes:
        """The object with a name that another program chose."""
        if _KEY.fullmatch(name):
            return self.get(name, size)
        if name.startswith("/") or ".." in name.split("/"):
            raise PayloadDamaged(f"{name[:100]!r} is not the name of an object in the payload store {self.url}.")
        body = self._read(name, size)
        if len(body) != size:
            raise PayloadDamaged(
                f"The object {name} in the payload store {self.url} does not have the {size} bytes that were sent."
            )
        return body

    def is_current(self, key: str) -> bool:
        """Whether a message with this key may still be sent."""
        return is_current(key, self._clock())

    def delete(self, key: str) -> None:
        if not _KEY.fullmatch(key):
            raise PayloadDamaged(f"{key[:100]!r} is not the key of an object in the payload store {self.url}.")
        try:
            self._files.rm_file(f"{self._root}/{key}")
        except FileNotFoundError:
            return
        except Exception as problem:
            raise self._unavailable("delete an object of", problem) from problem

    # --- for the sweeper

    def settled_hours(self, folder: str = "") -> list[str]:
        """The hours with objects in which nothing is written or sent any more, oldest first, as folders."""
        now_s = self._clock()
        found = [name for name in self._names(folder) if _HOUR.fullmatch(name)]
        return [in_folder(folder, hour) for hour in sorted(found) if now_s >= end_of(hour) + SETTLE_S]

    def keys(self, hour: str) -> list[str]:
        """The keys of the objects in the folder of an hour."""
        return [key for name in self._names(hour) if _KEY.fullmatch(key := f"{hour}/{name}")]

    def drop_hour(self, hour: str) -> None:
        """Remove the folder of an hour without objects. An object store has no folders, but Arrow leaves a mark."""
        folder = f"{self._root}/{hour}"
        try:
            if self._arrow and not self._names(hour):
                self._files.rmdir(folder)
            if not self._local:
                return
            for name in os.listdir(folder):
                if name.endswith(UNFINISHED):
                    os.unlink(f"{folder}/{name}")
            os.rmdir(folder)
        except OSError:
            return  # someone else was faster, or put something into it

    def claim(self, cluster: str) -> None:
        """Note whose store this is. Raises InvalidInput if it is the store of someone else, who would delete objects
        that this one needs.
        """
        owner = f"cluster {cluster}"
        found = self._read_owner()
        if not found:
            self._write(OWNER, owner.encode())
        elif found != owner:
            raise InvalidInput(
                f"The payload store {self.url} belongs to another server or cluster ({found[:64]}). Give each its own "
                "bucket, prefix or directory."
            )

    def client_folder(self) -> str:
        """Where clients write: apart from what the servers write, and named after those that delete it, if any."""
        found = _OWNER.fullmatch(self._read_owner())
        return client_folder(found[1]) if found else CLIENT

    def _read_owner(self) -> str:
        """Whose store this is; empty if it is nobody's."""
        try:
            return str(self._files.cat_file(f"{self._root}/{OWNER}").decode(errors="replace").strip())
        except FileNotFoundError:
            return ""
        except Exception as problem:
            raise self._unavailable("read", problem) from problem

    # --- storage

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self._root}/{name}"
        try:
            if self._local:
                write_durably(path, data)
            else:
                self._files.pipe_file(path, data)
        except Exception as problem:
            raise self._unavailable("write to", problem) from problem

    def _read(self, name: str, size: int) -> bytes:
        """At most one byte more than there should be: an object that someone replaced may be of any size."""
        try:
            found: bytes = self._files.cat_file(f"{self._root}/{name}", 0, size + 1, **self._range_options)
        except FileNotFoundError:
            raise PayloadDamaged(f"The object {name} is not in the payload store {self.url}.") from None
        except Exception as problem:
            raise self._unavailable("read", problem) from problem
        return found

    def _names(self, folder: str) -> list[str]:
        try:
            self._files.invalidate_cache()
            found = self._files.ls(f"{self._root}/{folder}".rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        except Exception as problem:
            raise self._unavailable("list", problem) from problem
        return sorted(str(each).rstrip("/").rpartition("/")[2] for each in found)

    def _unavailable(self, action: str, problem: Exception) -> PayloadStoreUnavailable:
        """Each storage has its own errors, some of which are not OSErrors."""
        reason = " ".join((str(problem) or type(problem).__name__).split())[:300]
        return PayloadStoreUnavailable(f"Cannot {action} the payload store {self.url}: {reason}. Retry later.")


def check_url(url: str) -> str:
    """The URL without a slash at its end. Raises InvalidInput, which says what the URL must be."""
    parts = urlsplit(url)
    where = parts.netloc if parts.scheme != "file" else parts.path.startswith("/") and not parts.netloc
    if parts.scheme not in SCHEMES or not where:
        raise InvalidInput(
            f"The URL of a payload store must be file:///directory, s3://bucket/prefix or similar, not {url!r}."
        )
    return url.rstrip("/")


def client_folder(cluster: str) -> str:
    """Where the clients of a cluster's servers write."""
    return f"{CLIENT}/{cluster}"


def in_folder(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def is_current(key: str, now_s: float) -> bool:
    """Whether a message with this key may still be sent: half of the time until the sweeper may look at it is left."""
    return now_s < end_of(key.split("/")[-2]) + SETTLE_S / 2


def hour_of(seconds: float) -> str:
    return time.strftime("%Y%m%d%H", time.gmtime(seconds))


def end_of(hour: str) -> float:
    """When an hour such as 2026111722 ends, in seconds since 1970."""
    try:
        return datetime.strptime(hour, "%Y%m%d%H").replace(tzinfo=UTC).timestamp() + HOUR_S
    except ValueError:
        return float("inf")  # a folder of someone else


def _open(url: str) -> tuple[Any, str]:
    """The file system of fsspec, and the root in it."""
    try:
        import fsspec
    except ImportError:
        raise InvalidInput("A payload store needs fsspec: pip install 'batonq[payloads]'.") from None
    parts = urlsplit(url)
    if parts.scheme == "file":
        return fsspec.filesystem("file"), os.path.normpath(unquote(parts.path))
    root = f"{parts.netloc}{unquote(parts.path)}"
    if parts.scheme == "memory":
        return fsspec.filesystem("memory"), f"/{root}"
    if parts.scheme == "s3":
        return _open_s3(fsspec), root
    try:
        return fsspec.filesystem(parts.scheme), root
    except ImportError as problem:
        raise InvalidInput(f"The payload store {url} needs another package: {problem}") from None


def _open_s3(fsspec: Any) -> Any:
    """S3 with s3fs, or with Arrow if that is what is installed."""
    endpoint = s3_endpoint()
    try:
        return fsspec.filesystem("s3", **({"endpoint_url": endpoint} if endpoint else {}))
    except ImportError:
        pass
    try:
        return open_arrow_s3()
    except ImportError:
        raise InvalidInput("A payload store in S3 needs s3fs: pip install 'batonq[payloads]' s3fs.") from None
