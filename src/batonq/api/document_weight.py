"""How much work a JSON document makes, seen before it is decoded.

Decoding takes time by the number of values, not of bytes: 4 MiB of `{},{},…` would stop the event loop for most of a
second. Counting brackets and separators takes a thousandth of that. Those inside of strings do not count, but leaving
them out takes longer, so it is done only when the first count is above the limit.
"""

from __future__ import annotations

from typing import NamedTuple

SMALL_BYTES = 64 * 1024  # a document up to this size is never too heavy


class WeightLimit(NamedTuple):
    brackets_max: int  # { and [
    separators_max: int  # , and :

    def allows(self, document: bytes) -> bool:
        return len(document) <= SMALL_BYTES or self._counts(document) or self._counts_outside_strings(document)

    def _counts(self, text: bytes) -> bool:
        return (
            text.count(b"{") + text.count(b"[") <= self.brackets_max
            and text.count(b",") + text.count(b":") <= self.separators_max
        )

    def _counts_outside_strings(self, document: bytes) -> bool:
        if b"\\" in document:
            document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
        # Behind every string there is a separator or the end of an object or a list.
        if document.count(b'"') > 2 * (self.brackets_max + self.separators_max):
            return False
        return self._counts(b"".join(document.split(b'"')[::2]))
