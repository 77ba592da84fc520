"""The vocabulary of the log: what is declared is written, and a flag has one name."""

from __future__ import annotations

from enum import IntFlag
from pathlib import Path

import pytest

import batonq.core
from batonq.core.records import FLAGS, Reason, Type

CORE = Path(batonq.core.__file__).parent
SOURCES = "\n".join(path.read_text() for path in sorted(CORE.rglob("*.py")) if path.name != "records.py")


@pytest.mark.parametrize(
    "member", [*Type, *Reason, *(flag for kind in dict.fromkeys(FLAGS.values()) for flag in kind)], ids=str
)
def test_what_is_declared_is_used_by_the_core(member: Type | Reason | IntFlag) -> None:
    """A type, a reason or a flag that nothing writes does not exist."""
    assert f"{type(member).__name__}.{member.name}" in SOURCES


@pytest.mark.parametrize("kind", [Type, Reason, *dict.fromkeys(FLAGS.values())], ids=lambda kind: kind.__name__)
def test_no_number_has_two_names(kind: type[Type] | type[Reason] | type[IntFlag]) -> None:
    """A second name for a number would be printed as the first."""
    assert [member.name for member in kind] == list(kind.__members__)


def test_flags_fit_a_byte() -> None:
    assert all(0 < flag <= 0x80 for kind in FLAGS.values() for flag in kind)
