"""A secured server from afar: with a key, with the admin token, and without either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cli.support import Shell
from tests.support.authority import Authority
from tests.system.process import ServerProcess


class Secured(NamedTuple):
    url: str
    data: str
    key: str
    secret: str
    token: str


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    data = tmp_path_factory.mktemp("secured")
    key = json.loads(Shell()("keys", "create", "--data", str(data), "--json").out)
    with ServerProcess(data, "--secure") as server:
        token = (data / "admin-token").read_text().strip()
        yield Secured(server.url, str(data), key["keyId"], key["secret"], token)


@pytest.fixture
def with_key(secured: Secured, tmp_path: Path) -> Shell:
    return Shell(
        BATON_URL=secured.url,
        BATON_ACCESS_KEY_ID=secured.key,
        BATON_SECRET_ACCESS_KEY=secured.secret,
        XDG_CONFIG_HOME=str(tmp_path),
    )


@pytest.fixture
def with_token(secured: Secured, tmp_path: Path) -> Shell:
    return Shell(BATON_URL=secured.url, BATON_TOKEN=secured.token, XDG_CONFIG_HOME=str(tmp_path))


@pytest.mark.parametrize("credentials", ["with_key", "with_token"])
def test_the_life_of_a_message(credentials: str, request: pytest.FixtureRequest) -> None:
    shell: Shell = request.getfixturevalue(credentials)
    queue = credentials.replace("_", "-") + ".fifo"
    shell.good("queue", "create", queue, "--tag", "a b=ü")
    shell.good("send", queue, "grüße", "--group", "g", "--dedup-key", "k")
    assert "Waiting to be received." in shell.good("peek", queue, "--text", "grüße")
    message = shell.json("receive", queue)["messages"][0]
    assert shell.json("queue", "show", queue)["stats"]["inFlight"] == 1
    shell.good("ack", queue, message["receiptHandle"])
    shell.good("queue", "purge", queue, "--yes")
    assert shell("queue", "show", "nobodys").code == 3
    shell.good("queue", "delete", queue, "--yes")


def test_flags_and_contexts(secured: Secured, tmp_path: Path) -> None:
    bare = Shell(XDG_CONFIG_HOME=str(tmp_path))
    secret, token = tmp_path / "secret", tmp_path / "token"
    secret.write_text(secured.secret)
    token.write_text(secured.token)
    url = ("--url", secured.url)
    bare.good("queue", "create", "flags", *url, "--key", secured.key, "--secret-file", str(secret))
    shouted = secured.url.replace("127.0.0.1", "LOCALHOST")
    bare.good("queue", "show", "flags", "--url", shouted, "--key", secured.key, "--secret-file", str(secret))
    bare.good("queue", "show", "flags", *url, "--token-file", str(token))
    bare.good("queue", "show", "flags", *url, "--token", secured.token)
    bare.good("queue", "show", "flags", "--data", secured.data)
    bare.good("context", "add", "k", *url, "--key", secured.key, "--secret-file", str(secret), "--check")
    bare.good("context", "add", "t", *url, "--token-file", str(token), "--check")
    bare.good("queue", "show", "flags")
    bare.good("queue", "show", "flags", "--context", "t")


def test_refused_credentials_say_what_to_do(
    secured: Secured, with_key: Shell, with_token: Shell, nowhere: Shell
) -> None:
    done = nowhere("queue", "show", "q", "--url", secured.url)
    assert done.code == 5 and f"{secured.url} requires credentials: " in done.err and "BATON_ACCESS_KEY_ID" in done.err
    done = with_key("queue", "show", "q", BATON_SECRET_ACCESS_KEY="wrong")
    assert done.code == 5 and f"{secured.url} refused the key {secured.key}: " in done.err
    done = with_token("queue", "show", "q", BATON_TOKEN="wrong")
    assert done.code == 5 and f"{secured.url} refused the token: " in done.err
    done = nowhere("send", "q", "x", "--data", secured.data + "-not-there")
    assert done.code == 1 and "No server is using the data directory" in done.err


def test_an_operator_acts_for_another_account(secured: Secured, with_token: Shell) -> None:
    other = ("--account", "222233334444")
    with_token.good("queue", "create", "theirs", *other)
    assert with_token("queue", "show", "theirs").code == 3
    assert ":222233334444:" in with_token.json("queue", "show", "theirs", *other)["queue"]["arn"]
    done = with_token("queue", "show", "theirs", "--account", "me")
    assert done.code == 5 and "Baton-Account must have 12 digits, not 'me'." in done.err


WHOLE_SERVER = (
    ("status",),
    ("alarms", "list"),
    ("config", "show"),
    ("worker", "list"),
    ("keys", "list"),
    ("export",),
    ("jobs", "list"),
    ("cluster", "status"),
    ("top",),
    ("queue", "list"),
    ("dlq", "list"),
)


@pytest.mark.parametrize("words", WHOLE_SERVER, ids=" ".join)
@pytest.mark.parametrize("credentials", ["with_key", "with_token"])
def test_the_whole_server_from_afar(credentials: str, words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    shell: Shell = request.getfixturevalue(credentials)
    done = shell(*words, "--json")
    assert done.code in (0, 6) and json.loads(done.out), done


def test_a_key_of_another_account_sees_its_own_queues_only(secured: Secured, with_token: Shell, nowhere: Shell) -> None:
    key = with_token.json("keys", "create", "--account", "333344445555")
    words = {"BATON_ACCESS_KEY_ID": key["keyId"], "BATON_SECRET_ACCESS_KEY": key["secret"], "BATON_URL": secured.url}
    other = Shell(**nowhere.variables, **words)
    other.good("queue", "create", "own")
    done = other("status")
    assert done.code == 5 and "Use a key of the server's own account" in done.err
    assert other.json("top")["status"] is None
    assert [queue["name"] for queue in other.json("queue", "list")["queues"]] == ["own"]
    assert other.json("doctor", code=6)["level"] == "warning"  # the queue has no dead-letter queue


def test_a_key_that_may_only_read(secured: Secured, with_token: Shell, nowhere: Shell) -> None:
    key = with_token.json("keys", "create", "--role", "read", "--name", "reader")
    words = {"BATON_ACCESS_KEY_ID": key["keyId"], "BATON_SECRET_ACCESS_KEY": key["secret"], "BATON_URL": secured.url}
    reader = Shell(**nowhere.variables, **words)
    with_token.good("queue", "create", "read-only")
    assert reader.json("queue", "show", "read-only")["queue"]["name"] == "read-only"
    done = reader("send", "read-only", "x")
    assert done.code == 5 and f"Key {key['keyId']} has the role read" in done.err
    said = reader.good("whoami")
    assert "may change queues and messages  no\n" in said and "may see the whole server        yes\n" in said
    assert said.endswith("may change the server itself    no\n")


# --- TLS --------------------------------------------------------------------------------------


def test_a_certificate_is_verified(tmp_path: Path, nowhere: Shell) -> None:
    authority = Authority(tmp_path / "authority")
    data = tmp_path / "data"
    with ServerProcess(data, *authority.sign("server", "localhost", "127.0.0.1").flags) as server:
        url = ("--url", server.url)
        done = nowhere("queue", "create", "q", *url)
        assert done.code == 4 and f"The certificate of {server.url} (--url) cannot be verified: " in done.err
        assert "Name its CA with --ca-file, or use --data on the server's machine." in done.err
        nowhere.good("queue", "create", "q", *url, "--ca-file", str(authority.file))
        nowhere.good("queue", "show", "q", *url, BATON_CA_FILE=str(authority.file))
        nowhere.good("queue", "show", "q", "--data", str(data))
        nowhere.good("context", "add", "tls", *url, "--ca-file", str(authority.file), "--check")
        nowhere.good("queue", "show", "q")
        done = nowhere("queue", "show", "q", "--url", server.url.replace("https:", "http:"))
        assert done.code == 4 and "If the server uses TLS, use a URL that begins with https://." in done.err


def test_who_the_server_takes_us_for(secured: Secured, with_key: Shell, with_token: Shell) -> None:
    caller = with_key.json("whoami")
    assert (caller["key"], caller["role"], caller["operator"]) == (secured.key, "write", True)
    assert with_token.json("whoami")["role"] == "admin"
    said = with_key.good("whoami")
    assert said.startswith("server ") and f" {secured.url} (BATON_URL)\n" in said and f" {secured.key}\n" in said
