"""Which server a command talks to, with which credentials, and what it says when that fails."""

from __future__ import annotations

import argparse
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batonq.cli import contexts
from batonq.cli.connection import DEFAULT_URL, Target, add_connection_arguments, checked_url, resolve
from batonq.cli.exit_codes import WrongUsage
from batonq.errors import InvalidInput, NotFound
from tests.cli.support import Shell, environment
from tests.support.ports import reserve_port
from tests.system.process import ServerProcess

KEYS = {"BATON_ACCESS_KEY_ID": "ENVKEY", "BATON_SECRET_ACCESS_KEY": "env-secret"}


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """A configuration with the contexts `prod` (in use, with a key) and `stage` (with a token)."""
    with environment({"XDG_CONFIG_HOME": str(tmp_path)}):
        kept = contexts.load()
        kept.named = {
            "prod": contexts.Context(url="https://prod", key="CTXKEY", secret="ctx-secret", account="111122223333"),
            "stage": contexts.Context(url="http://stage", token="ctx-token"),
        }
        kept.current = "prod"
        kept.save()
        (tmp_path / "secret").write_text("file-secret\n")
        yield tmp_path


def found(files: Path, *words: str, **variables: str) -> tuple[str, str, str, str, str]:
    parser = argparse.ArgumentParser()
    add_connection_arguments(parser)
    words = tuple(str(files / word[1:]) if word.startswith("@") else word for word in words)
    target: Target = resolve(parser.parse_args(words), variables)
    return target.url, target.origin, target.key, target.secret, target.token


# --- the order: flag, environment, context, default -------------------------------------------


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ((), {}, ("https://prod", "context prod", "CTXKEY", "ctx-secret", "")),
        ((), KEYS, ("https://prod", "context prod", "ENVKEY", "env-secret", "")),
        ((), {"BATON_TOKEN": "t", **KEYS}, ("https://prod", "context prod", "", "", "t")),
        ((), {"BATON_CONTEXT": "stage"}, ("http://stage", "context stage", "", "", "ctx-token")),
        ((), {"BATON_URL": "http://env/"}, ("http://env", "BATON_URL", "", "", "")),
        ((), {"BATON_URL": "http://env", **KEYS}, ("http://env", "BATON_URL", "ENVKEY", "env-secret", "")),
        ((), {"BATON_URL": "https://prod"}, ("https://prod", "BATON_URL", "CTXKEY", "ctx-secret", "")),
        (("--url", "http://flag"), {"BATON_URL": "http://env"}, ("http://flag", "--url", "", "", "")),
        (
            ("--context", "stage"),
            {"BATON_URL": "http://env", **KEYS},
            ("http://stage", "context stage", "", "", "ctx-token"),
        ),
        (("--context", "stage", "--url", "http://flag"), {}, ("http://flag", "--url", "", "", "")),
        (("--token", "t"), KEYS, ("https://prod", "context prod", "", "", "t")),
        (("--token-file", "@secret"), {}, ("https://prod", "context prod", "", "", "file-secret")),
        (("--key", "K", "--secret-file", "@secret"), {}, ("https://prod", "context prod", "K", "file-secret", "")),
        (("--key", "K"), KEYS, ("https://prod", "context prod", "K", "env-secret", "")),
    ],
)
def test_what_is_used(files: Path, words: tuple[str, ...], variables: dict[str, str], expected: Any) -> None:
    assert found(files, *words, **variables) == expected


def test_without_anything_the_default(tmp_path: Path) -> None:
    with environment({"XDG_CONFIG_HOME": str(tmp_path)}):
        assert found(tmp_path) == (DEFAULT_URL, "the default", "", "", "")


@pytest.mark.parametrize(
    ("words", "variables", "said"),
    [
        (("--key", "K"), {}, "The secret of --key K is missing."),
        (("--key", "K", "--token", "t"), {}, "Use either an access key (--key) or the admin token"),
        (("--token", "t", "--token-file", "@secret"), {}, "Use either --token or --token-file"),
        (("--secret-file", "@secret"), {}, "--secret-file needs --key"),
        (("--token-file", "@nothing"), {}, "nothing cannot be read: No such file or directory."),
        ((), {"BATON_ACCESS_KEY_ID": "K"}, "BATON_SECRET_ACCESS_KEY is not"),
    ],
)
def test_contradictions_are_wrong_usage(
    files: Path, words: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    with pytest.raises(WrongUsage) as problem:
        found(files, *words, **variables)
    assert said in problem.value.message


@pytest.mark.parametrize("url", ["", "prod:9324", "ftp://x", "http://", "http://a:b@c", "http://x?y", "http://x:y"])
def test_an_invalid_url(url: str) -> None:
    with pytest.raises(WrongUsage, match="is not a valid URL of a server"):
        checked_url(url)


def test_a_context_that_does_not_exist(files: Path) -> None:
    with pytest.raises(NotFound, match=r"Context 'prd' does not exist\. Did you mean prod\?"):
        found(files, "--context", "prd")


def test_contexts_are_private(files: Path) -> None:
    path = Path(contexts.path())
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(InvalidInput, match="Run: chmod 600"):
        contexts.load()
    path.chmod(0o600)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="is not a valid file of contexts"):
        contexts.load()


# --- a server that is not there, or is something else -----------------------------------------


def test_no_server_fails_at_once_with_the_url(nowhere: Shell) -> None:
    url = f"http://127.0.0.1:{reserve_port()}"
    for words in (("queue", "show", "q"), ("send", "q", "x"), ("peek", "q"), ("clock", "advance", "1s"), ("status",)):
        done = nowhere(*words, BATON_URL=url)
        assert (done.code, done.out) == (4, "")
        assert f"No server listens at {url} (BATON_URL). Start a server with `baton serve`, or name" in done.err
    done = nowhere("peek", "q", "--url", "http://no-such-host.invalid")
    assert done.code == 4 and "http://no-such-host.invalid (--url) cannot be reached: " in done.err
    done = nowhere("peek", "q", "--url", "no-url")
    assert done.code == 2 and "'no-url' is not a valid URL of a server. Example: http://127.0.0.1:9324" in done.err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi",
            "is not a Baton server: ",
        ),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404 Not Found with no content type. Check the URL."),
        (b"", "closed the connection without an answer. If the server uses TLS"),
        (b"220 mail.example ESMTP\r\n", "closed the connection without an answer"),
    ],
)
def test_something_else_listens_there(nowhere: Shell, answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def once() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        done = nowhere("peek", "q", "--url", f"http://127.0.0.1:{listening.getsockname()[1]}")
        thread.join()
    assert done.code == 4 and said in done.err, done


def test_tls_to_a_server_without_tls(nowhere: Shell, server: ServerProcess) -> None:
    done = nowhere("peek", "q", "--url", server.url.replace("http:", "https:"))
    assert done.code == 4 and "does not use TLS. Use a URL that begins with http://." in done.err


# --- contexts as commands ---------------------------------------------------------------------


def test_contexts_from_the_command_line(nowhere: Shell, server: ServerProcess, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret\n")
    assert nowhere.json("context", "list") == {"current": "", "contexts": []}
    assert (
        nowhere.good("context", "add", "here", "--url", server.url, "--check") == "Context here is stored and in use.\n"
    )
    assert nowhere.good("queue", "create", "by-context")  # no BATON_URL: the context names the server
    said = nowhere.good("context", "add", "far", "--url", "https://far", "--key", "K1", "--secret-file", str(secret))
    assert said == "Context far is stored.\n"
    shown = nowhere.json("context", "show", "far")
    assert shown["accessKeyId"] == "K1" and "s3cret" not in str(shown)
    out = nowhere.good("context", "list")
    assert [line.split()[:2] for line in out.splitlines()] == [["NAME", "URL"], ["far", "https://far"], ["*", "here"]]
    assert nowhere.json("context", "use", "far") == {"current": "far"}
    assert "credentials  key K1" in nowhere.good("context", "show") and "s3cret" not in nowhere.good("context", "show")
    assert nowhere.json("context", "add", "far", "--url", "https://other")["accessKeyId"] == "K1"
    assert nowhere.good("context", "use", "--none") == "No context is in use.\n"
    assert nowhere.json("context", "remove", "far") == {"current": ""}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("add", "x"), 2, "--url is missing: the URL of the server of context x."),
        (("add", "x y", "--url", "http://x"), 2, "without spaces, not 'x y'."),
        (("add", "x", "--url", "x"), 2, "'x' is not a valid URL of a server."),
        (("add", "x", "--url", "http://x", "--key", "k"), 2, "--key and --secret-file belong together"),
        (
            ("add", "x", "--url", "http://127.0.0.1:1", "--check"),
            4,
            "No server listens at http://127.0.0.1:1 (",
        ),
        (("use",), 2, "Name a context, or use --none."),
        (("use", "x"), 3, "Context 'x' does not exist."),
        (("remove", "x"), 3, "Context 'x' does not exist."),
        (("show",), 2, "No context is in use."),
    ],
)
def test_bad_input_of_context(nowhere: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    done = nowhere("context", *words)
    assert done.code == code and said in done.err, done
    assert nowhere.json("context", "list") == {"current": "", "contexts": []}
