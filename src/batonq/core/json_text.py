"""Limits on the nesting and the numbers of a valid JSON text, so that every consumer can read it.

A text is up to a megabyte long and comes from a client. The checks therefore take a few passes over the text, never a
loop over its characters or a pattern that backtracks.
"""

from __future__ import annotations

from array import array
from itertools import accumulate

DEPTH_MAX = 200
DIGITS_MAX = 4_300  # consecutive digits; Python, and so many consumers, cannot read longer integers

TOO_DEEP = f"The body is nested more than {DEPTH_MAX} levels deep."

_ALL_BUT_BRACKETS_AND_QUOTES = bytes(code for code in range(256) if code not in b'[]{}"')
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_AS_STEPS = bytes.maketrans(b"[]", b"\x01\xff")
_AS_DIGITS = bytes(ord("0") if chr(code) in "0123456789" else ord(" ") for code in range(256))
_TOO_MANY_DIGITS = b"0" * (DIGITS_MAX + 1)


def problem_of(text: bytes) -> str:
    """What is wrong with this text as a message body; empty if nothing is."""
    if too_deep(text):
        return TOO_DEEP
    if has_long_number(text):
        return f"The body contains a number with more than {DIGITS_MAX} digits, which some clients cannot read."
    return ""


def too_deep(text: bytes) -> bool:
    """Whether lists and maps are nested more than DEPTH_MAX levels deep."""
    if text.count(b"[") + text.count(b"{") <= DEPTH_MAX:
        return False
    brackets = _outside_strings(text, b"", _ALL_BUT_BRACKETS_AND_QUOTES).translate(_AS_SQUARE)
    depth_max = DEPTH_MAX
    while (
        len(inner := brackets.replace(b"[]", b"")) <= len(brackets) // 2 and inner
    ):  # most lists and maps contain no others
        brackets = inner
        depth_max -= 1
    for length in (16, 4):  # a run of brackets becomes one byte: the change in depth
        brackets = brackets.replace(b"[" * length, bytes((length,))).replace(b"]" * length, bytes((256 - length,)))
    steps = array("b", brackets.translate(_AS_STEPS))
    return max(accumulate(steps), default=0) > depth_max


def has_long_number(text: bytes) -> bool:
    """Whether a number has more than DIGITS_MAX digits in a row."""
    if len(text) <= DIGITS_MAX or _TOO_MANY_DIGITS not in text.translate(_AS_DIGITS):
        return False
    return _TOO_MANY_DIGITS in _outside_strings(text, b" ").translate(_AS_DIGITS)


def _outside_strings(text: bytes, between: bytes, left_out: bytes = b"") -> bytes:
    """The parts of the text outside strings, without the characters in `left_out`."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return between.join(text.translate(None, left_out).replace(b'""', b"").split(b'"')[::2])
