"""Where a lake is: a directory that the driver and the workers can access, or a prefix in an S3 bucket."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from batonq.errors import InvalidInput
from batonq.object_storage import open_arrow_s3, s3_endpoint

RETRIES = {"max_retries": "5", "retry_timeout": "30s"}  # its own limit is three minutes
_GLOB_SIGNS = frozenset("*?[]{}\\")
_URL_SIGNS = frozenset("%#")  # Arrow and delta-rs disagree about what they mean in a URL of S3


@dataclass(slots=True, frozen=True)
class Storage:
    """`url` is an absolute path, or s3://bucket/prefix. It is sent to the workers, which open it themselves."""

    url: str

    @classmethod
    def of(cls, given: str | os.PathLike[str]) -> Storage:
        """Raises InvalidInput for anything but a directory or s3://bucket/prefix."""
        text = os.fspath(given)
        forbidden = _GLOB_SIGNS | _URL_SIGNS if text.startswith("s3://") else _GLOB_SIGNS
        if forbidden & set(text):
            raise InvalidInput(f"The path of a lake cannot contain any of {' '.join(sorted(forbidden))}: {text}")
        parts = urlsplit(text) if "://" in text else None
        if parts is not None and parts.scheme == "s3" and parts.netloc:
            text = f"s3://{parts.netloc}/{parts.path.strip('/')}".rstrip("/")
        elif parts is None or (parts.scheme == "file" and not parts.netloc):
            text = os.path.abspath(text if parts is None else unquote(parts.path))
        else:
            raise InvalidInput(
                f"A lake must be a directory or s3://bucket/prefix, not {text!r}. For an object store other than "
                "Amazon's, use its S3 endpoint: set AWS_ENDPOINT_URL_S3."
            )
        return cls(text)

    @property
    def local(self) -> bool:
        return not self.url.startswith("s3://")

    def child(self, name: str) -> Storage:
        return Storage(f"{self.url}/{name}")

    def open(self) -> tuple[Any, str]:
        """(Arrow's file system, root in it)."""
        from pyarrow.fs import LocalFileSystem

        return (LocalFileSystem(), self.url) if self.local else (open_arrow_s3().fs, self.url.removeprefix("s3://"))

    def options(self) -> dict[str, str]:
        """For delta-rs, which takes credentials and region from the environment, but not this endpoint."""
        if self.local:
            return {}
        endpoint = s3_endpoint()
        place = {"AWS_ENDPOINT_URL": endpoint} if endpoint else {}
        return {**RETRIES, **place, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}

    def folders(self) -> list[str]:
        """The names in it; empty if it does not exist."""
        from pyarrow.fs import FileSelector, FileType

        files, root = self.open()
        found = files.get_file_info(FileSelector(root, allow_not_found=True))
        return sorted(one.base_name for one in found if one.type == FileType.Directory)
