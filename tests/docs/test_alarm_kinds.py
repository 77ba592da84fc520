"""What the alarms tell people to do exists: every command and every flag in their remedies."""

from __future__ import annotations

import re

from batonq.cli.main import build_parser
from batonq.node.alarms.kinds import KINDS
from batonq.node.settings import documented
from tools import make_docs

TEXTS = [text for kind in KINDS.values() for text in (kind.raised, kind.remedy, kind.escalates)]


def test_every_command_exists() -> None:
    known = {parser.prog for parser, _ in make_docs.commands(build_parser())}
    named = re.findall(r"`(baton [a-z]+(?: [a-z]+)?)", " ".join(TEXTS))
    assert len(named) > 5
    assert [name for name in named if name not in known] == []


def test_every_setting_exists() -> None:
    known = {f"--{field.name.replace('_', '-')}" for field, _ in documented()}
    named = re.findall(r"--[a-z-]+[a-z]", " ".join(TEXTS))
    assert len(named) > 10
    assert [name for name in named if name not in known] == []
