"""What the stores of payloads and of archives have in common: files that survive a power failure, and S3 with Arrow."""

from __future__ import annotations

import os
import secrets
from typing import Any

UNFINISHED = ".unfinished"  # ends the names of files that are being written


def write_durably(path: str, data: bytes, replace: bool = True) -> bool:
    """Write a file that survives a power failure. Returns whether it was written: an existing file is not changed
    unless it may be replaced. Raises OSError.
    """
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    unfinished = f"{path}.{secrets.token_hex(4)}{UNFINISHED}"  # another process may be writing the same file
    with open(unfinished, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if replace:
        os.replace(unfinished, path)
    else:
        try:
            os.link(unfinished, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(unfinished)
    sync_path(folder)
    return True


def sync_path(path: str) -> None:
    """What was written to a file, or the names in a folder, then survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def s3_endpoint() -> str:
    """The endpoint that the environment names, as for AWS's own tools; empty: AWS's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""


def open_arrow_s3() -> Any:
    """S3 as a file system of fsspec, through Arrow. Credentials, region and endpoint come from the environment. Raises
    ImportError.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    options: dict[str, Any] = {}
    endpoint = s3_endpoint()
    if endpoint:
        scheme, _, host = endpoint.rpartition("://")
        options = {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        options["region"] = region
    return ArrowFSWrapper(S3FileSystem(**options))
