"""The private members of nats-py that Baton relies on are there, with the shape that it relies on.

nats-py is pinned to one minor version (pyproject.toml). Whoever moves the pin runs this: what fails here is what
`log/jetstream/client.py` and `log/jetstream/login.py` must be adapted to.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.protocol import parser
from nats.protocol.parser import Parser

from batonq.log.jetstream import client, login

ROOT = Path(__file__).parents[2]

# Methods that are overridden or called: coroutine or not, and the names of their parameters.
METHODS: dict[tuple[type, str], tuple[bool, tuple[str, ...]]] = {
    (Client, "_attempt_reconnect"): (True, ()),
    (Client, "_connect_command"): (False, ()),
    (Client, "_connect_to_server"): (True, ("s",)),
    (Client, "_flush_pending"): (True, ("force_flush",)),
    (Client, "_process_connect_init"): (True, ()),
    (Client, "_process_err"): (True, ("err_msg",)),
    (Client, "_process_info"): (True, ("info", "initial_connection")),
    (Client, "_process_msg"): (True, ("sid", "subject", "reply", "data", "headers")),
    (Client, "_process_op_err"): (True, ("e",)),
    (Client, "_send_command"): (True, ("cmd", "priority")),
    (Client, "_send_publish"): (True, ("subject", "reply", "payload", "payload_size", "headers")),
    (Parser, "parse"): (True, ("data",)),
    (Parser, "reset"): (False, ()),
    (TcpTransport, "connect"): (True, ("uri", "buffer_size", "connect_timeout")),
    (TcpTransport, "read"): (True, ("buffer_size",)),
    (TcpTransport, "writelines"): (False, ("payload",)),
    (TcpTransport, "close"): (False, ()),
}
# What a new object holds, by type; None where nats-py sets it when it connects.
ATTRIBUTES: dict[tuple[type, str], type | None] = {
    (Client, "_pending"): list,
    (Client, "_pending_data_size"): int,
    (Client, "_ps"): Parser,
    (Client, "_server_info"): dict,
    (Client, "_flush_queue"): None,
    (Client, "_transport"): None,
    (Client, "stats"): dict,
    (Parser, "buf"): bytearray,
    (Parser, "header_needed"): int,
    (Parser, "msg_arg"): dict,
    (Parser, "nc"): None,
    (Parser, "needed"): int,
    (Parser, "state"): int,
    (TcpTransport, "_bare_io_reader"): None,
    (TcpTransport, "_bare_io_writer"): None,
    (TcpTransport, "_io_reader"): None,
    (TcpTransport, "_io_writer"): None,
}
CALLBACKS: dict[tuple[type, str], tuple[str, ...]] = {(Client, "_error_cb"): ("ex",)}


@pytest.mark.parametrize(("owner", "name"), METHODS, ids=lambda value: getattr(value, "__name__", value))
def test_a_method_takes_what_it_is_given(owner: type, name: str) -> None:
    is_coroutine, parameters = METHODS[owner, name]
    method = getattr(owner, name)
    assert inspect.iscoroutinefunction(method) == is_coroutine
    assert tuple(inspect.signature(method).parameters) == ("self", *parameters)


@pytest.mark.parametrize(("owner", "name"), ATTRIBUTES, ids=lambda value: getattr(value, "__name__", value))
def test_an_attribute_holds_what_is_expected(owner: type, name: str) -> None:
    async def main() -> Any:
        return vars(owner())[name]

    kind = ATTRIBUTES[owner, name]
    assert type(asyncio.run(main())) is (kind or type(None))


@pytest.mark.parametrize(("owner", "name"), CALLBACKS, ids=lambda value: getattr(value, "__name__", value))
def test_a_callback_is_there_from_the_beginning(owner: type, name: str) -> None:
    async def main() -> Any:
        return vars(owner())[name]

    callback = asyncio.run(main())
    assert inspect.iscoroutinefunction(callback)
    assert tuple(inspect.signature(callback).parameters) == CALLBACKS[owner, name]


def test_the_states_of_the_parser_differ() -> None:
    assert Parser().state == parser.AWAITING_CONTROL_LINE != parser.AWAITING_MSG_PAYLOAD


def test_messages_sent_and_their_bytes_are_counted() -> None:
    async def main() -> dict[str, int]:
        return Client().stats

    assert {"out_msgs", "out_bytes"} <= asyncio.run(main()).keys()


def test_every_private_member_in_use_is_listed() -> None:
    """Whatever name with an underscore Baton's client and nats-py both use."""

    async def new() -> list[Any]:
        return [Client(), Parser(), TcpTransport()]  # type: ignore[no-untyped-call]

    theirs = {name for made in asyncio.run(new()) for name in (*vars(made), *dir(type(made)))}
    ours = {
        node.attr
        for module in (client, login)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.Attribute)
    } | {
        node.name
        for module in (client, login)
        for node in ast.walk(ast.parse(inspect.getsource(module)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    private = {name for name in ours & theirs if name.startswith("_") and not name.startswith("__")}
    assert private == {name for _, name in (*METHODS, *ATTRIBUTES, *CALLBACKS) if name.startswith("_")}


def test_the_pin_ends_before_the_next_minor_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (pin,) = (one for one in project["optional-dependencies"]["cluster"] if one.startswith("nats-py"))
    major, minor = map(int, version("nats-py").split(".")[:2])
    assert pin.endswith(f">={major}.{minor},<{major}.{minor + 1}")
    for name in ("cluster.in", "image.in"):
        assert pin in (ROOT / "requirements" / name).read_text().splitlines()
