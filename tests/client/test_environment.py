"""The address and credentials of a client without arguments are those of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq import sync
from batonq.client import Baton, connect
from batonq.client.environment import Access, from_environment, trusted
from batonq.errors import InvalidInput
from tests.client.support import Asked, ScriptedServer, answer, connected, run

NAMES = ("BATON_CA_FILE", "BATON_URL", "BATON_ACCESS_KEY_ID", "BATON_SECRET_ACCESS_KEY", "BATON_TOKEN", "BATON_ACCOUNT")
KEYS = {"BATON_ACCESS_KEY_ID": "AK", "BATON_SECRET_ACCESS_KEY": "secret"}
CERTIFICATE = Path(__file__).parent / "tls" / "localhost.pem"
HERE = "http://127.0.0.1:9324"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("variables", "given", "found"),
    [
        ({}, {}, Access(HERE)),
        ({"BATON_URL": "http://a:1"}, {}, Access("http://a:1")),
        ({"BATON_URL": "http://a:1"}, {"url": "http://b:2"}, Access("http://b:2")),
        (KEYS, {}, Access(HERE, "AK", "secret")),
        ({**KEYS, "BATON_TOKEN": "t", "BATON_ACCOUNT": "111122223333"}, {}, Access(HERE, "AK", "secret")),
        ({"BATON_TOKEN": "t", "BATON_ACCOUNT": "1" * 12}, {}, Access(HERE, token="t", account="1" * 12)),
        ({"BATON_ACCOUNT": "1" * 12}, {}, Access(HERE, "1" * 12, "development")),
        (KEYS, {"account": "2" * 12}, Access(HERE, "2" * 12, "development")),
        (KEYS, {"token": "t"}, Access(HERE, token="t")),
        ({"BATON_TOKEN": "t"}, {"access_key": "B", "secret_key": "s"}, Access(HERE, "B", "s")),
        ({"BATON_URL": "", "BATON_TOKEN": ""}, {}, Access(HERE)),
    ],
)
def test_what_is_given_has_precedence(
    variables: dict[str, str], given: dict[str, str], found: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert from_environment(**given).checked() == found


def test_half_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="access_key and secret_key must be set together"):
        Baton(HERE, access_key="A")
    with pytest.raises(InvalidInput, match="not both"):
        Baton(HERE, access_key="A", secret_key="s", token="t")
    with pytest.raises(InvalidInput, match="belongs to its account"):
        Baton(HERE, access_key="A", secret_key="s", account="1" * 12)
    monkeypatch.setenv("BATON_ACCESS_KEY_ID", "A")
    with pytest.raises(InvalidInput, match="BATON_ACCESS_KEY_ID and BATON_SECRET_ACCESS_KEY"):
        connect()


def test_both_clients_read_the_environment_unless_they_have_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_URL", "http://a:1")
    assert Baton().url == sync.Baton().url == connect().url == sync.connect().url == "http://a:1"
    assert Baton("http://b:2").url == connect("http://b:2").url == "http://b:2"


def test_the_authority_of_the_environment_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trusted() is None
    monkeypatch.setenv("BATON_CA_FILE", str(CERTIFICATE))
    context = trusted()
    assert context is not None and len(context.get_ca_certs()) == 1
    monkeypatch.setenv("BATON_URL", "https://localhost:1")
    assert Baton().url == connect().url == "https://localhost:1"
    monkeypatch.setenv("BATON_CA_FILE", "/nowhere")
    with pytest.raises(InvalidInput, match="/nowhere"):
        connect()


def test_a_token_goes_with_every_request(form: str) -> None:
    async def script(asked: Asked) -> bytes:
        return answer(value={"visible": 0})

    async def body() -> None:
        with ScriptedServer(script) as server:
            async with connected(form, server.url, token="let-me-in") as baton:
                await baton.queue("q").stats()
            async with connected(form, server.url, token="let-me-in", account="1" * 12) as baton:
                await baton.queue("q").stats()
            assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer let-me-in"] * 2
            assert [asked.headers.get("baton-account") for asked in server.asked] == [None, "1" * 12]

    run(body())
