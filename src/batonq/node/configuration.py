"""Where a server's settings come from: a flag, an environment variable, a configuration file, or the default.

A flag wins over a variable, a variable over the file, and the file over the default. `load` collects the settings and
remembers the origin of each; `show` lists them without secrets.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass
from difflib import get_close_matches
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

from batonq.errors import InvalidInput
from batonq.node.settings import Settings, documented
from batonq.quantities import read_size

CONFIG_VARIABLE = "BATON_CONFIG"
FILE_BYTES_MAX = 1 << 20
HIDDEN = "***"
_FLAG = re.compile(r"--([a-z][a-z0-9-]*)")
_SECRET_NAME = re.compile(r"(^|_)(password|secret|token)$")
_SECRET_PARAMETER = re.compile(r"(?i)([?&][^=&#]*(?:password|secret|token)=)[^&#]*")
_TRUE = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}

Value = str | int | float | bool | None
Origin = Literal["default", "file", "environment", "flag"]


@dataclass(slots=True, frozen=True)
class ShownSetting:
    """One setting as a person may see it: secrets are hidden."""

    name: str
    flag: str
    variable: str
    value: Value
    default: Value
    origin: Origin
    file: str  # the configuration file, if the value comes from there
    doc: str


def variable_of(name: str) -> str:
    return "BATON_" + name.upper()


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def load(flags: Mapping[str, Any], environment: Mapping[str, str], config_file: str = "") -> Settings:
    """The settings of a server, checked. `flags` are those that were given, by setting. Raises InvalidInput.

    `config_file` empty: the file that BATON_CONFIG names, if any.
    """
    config_file = config_file or environment.get(CONFIG_VARIABLE, "")
    known = {entry.name: entry for entry, _ in documented()}
    values: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    if config_file:
        for name, value in _read_file(config_file, known).items():
            values[name], origins[name] = value, "file"
    for name, entry in known.items():
        text = environment.get(variable_of(name))
        if text is None or _is_service_link(name, text):
            continue
        try:
            values[name], origins[name] = parse(entry, text), "environment"
        except ValueError as problem:
            raise InvalidInput(f"The environment variable {variable_of(name)} is not valid: {problem}.") from None
    for name, value in flags.items():
        values[name], origins[name] = value, "flag"
    values.setdefault("shards", max(1, values.get("processes", 1)))
    settings = Settings(**values, origins=origins, config_file=config_file)
    try:
        settings.check()
    except InvalidInput as problem:
        raise type(problem)(problem.message + _origins_of(problem.message, settings)) from None
    return settings


def _is_service_link(name: str, text: str) -> bool:
    """Kubernetes sets BATON_PORT to a URL in every pod if there is a service named baton. It is not our setting."""
    return name == "port" and text.startswith(("tcp://", "udp://"))


def _origins_of(message: str, settings: Settings) -> str:
    """Where the settings that a message names by their flags come from, if not from flags."""
    said = []
    for name in dict.fromkeys(found.replace("-", "_") for found in _FLAG.findall(message)):
        origin = settings.origins.get(name)
        if origin == "environment":
            said.append(f"{flag_of(name)} is set by the environment variable {variable_of(name)}")
        elif origin == "file":
            said.append(f"{flag_of(name)} is set by {name} in {settings.config_file}")
    return f" ({'; '.join(said)}.)" if said else ""


# --- reading -------------------------------------------------------------------------------------


def parse(entry: Field[Any], text: str) -> Value:
    """The value of a setting from text. Raises ValueError."""
    kind = str(entry.type).partition(" ")[0]
    if kind == "str":
        return text
    if kind == "bool":
        if text.strip().lower() not in _TRUE:
            raise ValueError(f"{text!r} is neither true nor false")
        return _TRUE[text.strip().lower()]
    if "bytes" in entry.name:
        return read_size(text)
    try:
        return int(text) if kind == "int" else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {'an integer' if kind == 'int' else 'a number'}") from None


def _read_file(path: str, known: Mapping[str, Field[Any]]) -> dict[str, Value]:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise InvalidInput(f"The configuration file {path} cannot be read: {problem.strerror}.") from None
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(f"The configuration file {path} is larger than {FILE_BYTES_MAX} bytes.")
    try:
        found = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidInput(f"The configuration file {path} is not valid TOML: {problem}.") from None
    values: dict[str, Value] = {}
    for name, value in found.items():
        entry = known.get(name)
        if entry is None:
            raise InvalidInput(f"The configuration file {path} has an unknown setting {name!r}.{_did_you_mean(name)}")
        try:
            values[name] = _from_toml(entry, value)
        except ValueError as problem:
            raise InvalidInput(f"The configuration file {path} has {name}, which is not valid: {problem}.") from None
    return values


def _did_you_mean(name: str) -> str:
    names = [entry.name for entry, _ in documented()]
    close = get_close_matches(name.lower().replace("-", "_"), names, 1)
    return f" Did you mean {close[0]}?" if close else " baton serve --help-all lists the settings."


def _from_toml(entry: Field[Any], value: object) -> Value:
    """Numbers may be text too, such as "64MiB"; a list of texts is joined with commas."""
    kind = str(entry.type).partition(" ")[0]
    if isinstance(value, list) and kind == "str" and all(isinstance(item, str) for item in value):
        return ",".join(value)
    if isinstance(value, str):
        return parse(entry, value)
    if isinstance(value, bool):
        if kind == "bool":
            return value
        value = str(value).lower()
    elif isinstance(value, int) and kind in ("int", "float"):
        return value if kind == "int" else float(value)
    elif isinstance(value, float) and kind == "float":
        return value
    wanted = {"str": "a text", "bool": "true or false", "int": "an integer", "float": "a number"}[kind]
    raise ValueError(f"{str(value)[:100]} is not {wanted}")


# --- showing -------------------------------------------------------------------------------------


def show(settings: Settings) -> list[ShownSetting]:
    """Every setting with the value that is in effect, and where it comes from."""
    in_effect: dict[str, Value] = {
        "secure": settings.secured,
        "purge_wait_s": settings.purge_wait_ms / 1000,
        "delete_wait_s": settings.delete_wait_ms / 1000,
        "address_share": settings.address_part,
    }
    shown = []
    for entry, doc in documented():
        origin = settings.origins.get(entry.name, "default")
        value = in_effect.get(entry.name, getattr(settings, entry.name))
        shown.append(
            ShownSetting(
                name=entry.name,
                flag=flag_of(entry.name),
                variable=variable_of(entry.name),
                value=hide(entry.name, value),
                default=None if entry.default is MISSING else entry.default,
                origin=origin,
                file=settings.config_file if origin == "file" else "",
                doc=doc,
            )
        )
    return shown


def hide(name: str, value: Value) -> Value:
    """The value without its secrets: a password in a URL, a token, a secret, the path of a webhook."""
    if not isinstance(value, str) or not value:
        return value
    if _SECRET_NAME.search(name):
        return HIDDEN
    if "://" not in value:
        return value
    if name.endswith("webhooks"):
        return ",".join(map(_hide_path, value.split(",")))
    return ",".join(map(_hide_in_url, value.split(","))) if name.endswith("s") else _hide_in_url(value)


def _hide_path(url: str) -> str:
    """A webhook's URL up to its host: who knows the rest of it can often send there."""
    parts = urlsplit(_hide_in_url(url.strip()))
    return f"{parts.scheme}://{parts.netloc}" + (f"/{HIDDEN}" if parts.path.strip("/") or parts.query else "")


def _hide_in_url(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return HIDDEN
    login, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = login.partition(":")
    if colon:
        login = f"{user}:{HIDDEN}"
    elif at and parts.scheme in ("nats", "tls") and "password_file=" not in parts.query:
        login = HIDDEN  # without a password, it is a token
    return _SECRET_PARAMETER.sub(rf"\1{HIDDEN}", urlunsplit(parts._replace(netloc=login + at + hosts)))
