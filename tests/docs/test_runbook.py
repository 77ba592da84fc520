"""Every kind of alarm has a section in the runbook that says what to do, and every section is a kind of alarm."""

from __future__ import annotations

import re

from batonq.node.alarms.kinds import KINDS
from tests.docs.pages import ROOT


def test_every_kind_of_alarm_has_a_section() -> None:
    parts = re.split(r"^### (.+)$", (ROOT / "docs" / "how-to" / "runbook.md").read_text(), flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert set(sections) == set(KINDS)
    assert [name for name, text in sections.items() if len(text.split()) < 8] == []
