"""GET /v1/config: the settings of the server, each with its origin, without secrets."""

from __future__ import annotations

from dataclasses import asdict

from msgspec import UNSET, UnsetType

from batonq.api.rest.service import Answer, Call
from batonq.api.rest.shapes import Answered
from batonq.node.configuration import Origin, show
from batonq.node.settings import Settings


class SettingValue(Answered):
    """A setting and its value."""

    name: str
    flag: str
    variable: str
    value: str | int | float | bool | None
    default: str | int | float | bool | None
    origin: Origin
    doc: str
    file: str | UnsetType = UNSET


class Config(Answered):
    settings: list[SettingValue]


async def get_config(call: Call) -> Answer:
    call.require_operator(write=False)
    return Answer(200, config_of(call.broker.settings))


def config_of(settings: Settings) -> Config:
    return Config([SettingValue(**{**asdict(one), "file": one.file or UNSET}) for one in show(settings)])
