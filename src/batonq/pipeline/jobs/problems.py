"""Turns errors from Spark into one sentence: Baton's own error if there is one, without Java stack traces."""

from __future__ import annotations

import re

from batonq.errors import BatonError
from batonq.pipeline.lake.frames import DAMAGED

# A Baton error in Spark's text: at the end of a Python traceback, or after Spark's own words (spark/brief_errors.py).
_OURS = re.compile(r"(?:^|: )batonq\.[\w.]+\.[A-Z]\w+: (?P<message>\S.*)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?P<message>(?:\w+\.)*\w*(?:Error|Exception): \S.*)$", re.MULTILINE)
# A file that Spark could not read, or did not find.
_FILE = re.compile(r"\[(?:FAILED_READ_FILE|PATH_NOT_FOUND)[.\w]*\].*? file:/*(?P<path>/\S+?\.parquet)", re.MULTILINE)
_SPARK_CODES = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] | SQLSTATE: \w+$")


def is_spark(problem: BaseException) -> bool:
    return type(problem).__module__.partition(".")[0] in ("pyspark", "py4j")


def sentence(problem: BaseException) -> str:
    """One line for the user: Baton's own error if there is one, otherwise the innermost Python error, otherwise Spark's
    first line.
    """
    if isinstance(problem, BatonError):
        return problem.message
    text = _all_text(problem)
    if found := _OURS.findall(text):
        return str(found[-1])
    if found := _FILE.findall(text):
        return f"The file {found[0]} {DAMAGED}"
    if "Traceback (most recent call last)" in text and (found := _PYTHON.findall(text)):
        return f"Spark failed: {found[-1]}"
    first = next((line for line in text.splitlines() if line.strip()), type(problem).__name__)
    return "Spark failed: " + _SPARK_CODES.sub("", first)


def not_started(problem: BaseException, said: str) -> str:
    """Why the session did not start: Java's last output if it gave no other reason."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if "JAVA_GATEWAY_EXITED" in str(problem) and lines:
        return f"Java said: {lines[-1]}"
    return sentence(problem)


def _all_text(problem: BaseException) -> str:
    """The texts of an error and of its causes."""
    parts: list[str] = []
    link: BaseException | None = problem
    while link is not None and len(parts) < 10:
        parts.append(str(link))
        link = link.__cause__
    return "\n".join(parts)
