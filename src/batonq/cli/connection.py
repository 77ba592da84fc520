"""Which server a command talks to, and how: the only module of the command line that sends requests to the REST API.

The URL and the credentials come from flags, the environment, or a context, in this order; see `resolve`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from batonq import __version__
from batonq.cli.exit_codes import Unreachable, WrongUsage
from batonq.cli.parser import did_you_mean
from batonq.errors import BY_CODE, AccessDenied, BatonError, InvalidInput, NotFound, QueueDoesNotExist

if TYPE_CHECKING:
    from batonq.cli.contexts import Context

DEFAULT_URL = "http://127.0.0.1:9324"
CONNECT_TIMEOUT_S = 10
TIMEOUT_S = 60
ANSWER_BYTES_MAX = 64 << 20
RETRY_MAX_S = 30.0
SECRET_BYTES_MAX = 4096
NAMES_FOR_SUGGESTION = 1_000
URL_VARIABLE = "BATON_URL"
KEY_VARIABLE = "BATON_ACCESS_KEY_ID"
SECRET_VARIABLE = "BATON_SECRET_ACCESS_KEY"
TOKEN_VARIABLE = "BATON_TOKEN"
ACCOUNT_VARIABLE = "BATON_ACCOUNT"
CONTEXT_VARIABLE = "BATON_CONTEXT"
CA_VARIABLE = "BATON_CA_FILE"
GROUP = "server and credentials"
OPENING = "The request's body is not valid: "  # a user of the command line has written no request
_FORMAT = re.compile(r"\b(\w+) does not have the required format\. \1: ")
# a field of the REST API in an error: "to: …", "`from`", "filter.messageIds[0]"
_FIELD = re.compile(r"^([a-z]+)(?:\[\d+\])?(?=: )|`([a-z]+)`|\b(?:\w+\.)?([a-z]+[A-Z]\w*)(?:\[\d+\])?")
_COMMANDS = {"GET /v1/alarms": "baton alarms list", "GET /v1/history": "baton cluster status"}
_DATA_HELP = "data directory of a running server: its URL and token are used"
_CREDENTIALS_HELP = (
    f"Give an access key ({KEY_VARIABLE} and {SECRET_VARIABLE}, or --key and --secret-file) or the admin token "
    f"({TOKEN_VARIABLE}, --token-file, or --data on the server's machine)."
)


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of every command that talks to the REST API of a server."""
    group = add_operator_arguments(parser)
    group.add_argument("--account", help="account to act for (default: the key's, or the server's)")


def add_operator_arguments(parser: argparse.ArgumentParser, data_help: str = _DATA_HELP) -> argparse._ArgumentGroup:
    """The same flags for a command that acts for the whole server, not for an account."""
    group = add_client_arguments(parser)
    group.add_argument("--token", help=f"admin token; other users can see it, so prefer {TOKEN_VARIABLE}")
    group.add_argument("--token-file", metavar="FILE", help="file that contains the admin token")
    group.add_argument("--data", metavar="DIR", help=data_help)
    return group


def add_client_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """The flags of a command that runs the Python client, which signs its requests with an access key."""
    group = parser.add_argument_group(GROUP)
    group.add_argument("--url", help=f"URL of the server (default: {URL_VARIABLE}, the context, or {DEFAULT_URL})")
    group.add_argument("--context", metavar="NAME", help="use this context; see `baton context`")
    group.add_argument("--key", metavar="ID", help=f"id of the access key (default: {KEY_VARIABLE})")
    group.add_argument(
        "--secret-file", metavar="FILE", help=f"file that contains the key's secret (default: {SECRET_VARIABLE})"
    )
    group.add_argument("--ca-file", metavar="FILE", help=f"CA certificate of the server (default: {CA_VARIABLE})")
    return group


class Target(NamedTuple):
    """A server and the credentials for it."""

    url: str
    origin: str  # where the URL is from: --url, BATON_URL, context prod, …
    key: str = ""
    secret: str = ""
    token: str = ""
    account: str = ""
    ca_file: str = ""
    pinned: ssl.SSLContext | None = None  # verifies the one certificate of the server with this data directory

    def tls(self) -> ssl.SSLContext | None:
        """How to verify the server; None for a server without TLS."""
        if not self.url.startswith("https:"):
            return None
        if self.pinned is not None:
            return self.pinned
        from batonq.certificates import client_context

        return client_context(self.ca_file)


def resolve(arguments: argparse.Namespace, environment: Mapping[str, str] | None = None) -> Target:
    """The server and credentials for a command: each from a flag, else the environment, else the context.

    The credentials of a context are only sent to the URL of that context.
    """
    return _Resolution(arguments, os.environ if environment is None else environment).target()


def use_for_client(arguments: argparse.Namespace) -> None:
    """Make the Python client in this process, and in its child processes, use what the command line and the context
    say. The client reads the environment.
    """
    target = _Resolution(arguments, os.environ, client=True).target()
    if target.token and not target.key:
        raise WrongUsage(
            f"{target.origin} has an admin token. This command needs an access key: see `baton keys create`."
        )
    if target.key:
        os.environ[KEY_VARIABLE], os.environ[SECRET_VARIABLE] = target.key, target.secret
    if target.ca_file:
        os.environ["SSL_CERT_FILE"] = target.ca_file
    if target.origin != "the default":
        os.environ[URL_VARIABLE] = target.url


class _Resolution:
    """Finds the server and credentials of one command. `client`: for the Python client, which knows no admin token."""

    def __init__(self, arguments: argparse.Namespace, environment: Mapping[str, str], *, client: bool = False) -> None:
        self._arguments = arguments
        self._environment = environment
        self._client = client
        self._context, self._context_name = self._find_context()

    def _flag(self, name: str) -> str:
        return getattr(self._arguments, name, None) or ""

    def _variable(self, name: str) -> str:
        return self._environment.get(name, "")

    def _find_context(self) -> tuple[Context | None, str]:
        from batonq.cli import contexts

        name = self._flag("context") or self._variable(CONTEXT_VARIABLE)
        if not name and not os.path.exists(contexts.path()):
            return None, ""
        kept = contexts.load()
        name = name or kept.current
        return (kept.get(name), name) if name else (None, "")

    def target(self) -> Target:
        target = self._located()
        context = self._context if self._context is not None and self._context.url == target.url else None
        key, secret, token = self._credentials(target, context)
        account = self._flag("account") or self._variable(ACCOUNT_VARIABLE) or (context.account if context else "")
        ca_file = self._flag("ca_file") or self._variable(CA_VARIABLE) or (context.ca_file if context else "")
        return target._replace(key=key, secret=secret, token=token, account=account, ca_file=ca_file)

    def _located(self) -> Target:
        """The URL. A context that a flag names comes before the environment."""
        url, data, context = self._flag("url"), self._flag("data"), self._context
        if data:
            # imported late: it loads the node, which a server that is reached by its URL does not need
            from batonq.cli.server import find

            found = find(data)
            if url:
                return Target(url=checked_url(url), origin="--url", token=found.token)
            return Target(url=found.address, origin=f"--data {data}", token=found.token, pinned=found.context)
        if url:
            return Target(url=checked_url(url), origin="--url")
        if context is not None and self._flag("context"):
            return Target(url=context.url, origin=f"context {self._context_name}")
        if self._variable(URL_VARIABLE):
            return Target(url=checked_url(self._variable(URL_VARIABLE)), origin=URL_VARIABLE)
        if context is not None:
            return Target(url=context.url, origin=f"context {self._context_name}")
        return Target(url=DEFAULT_URL, origin="the default")

    def _credentials(self, target: Target, context: Context | None) -> tuple[str, str, str]:
        """Key, secret and token. `context` is given only if the URL is that of the context."""
        given = self._credentials_of_flags()
        if any(given):
            return given
        if target.token:
            return "", "", target.token
        of_context = (context.key, context.secret, context.token) if context is not None else ("", "", "")
        if self._flag("context") and any(of_context):
            return of_context
        if self._variable(TOKEN_VARIABLE) and not self._client:
            return "", "", self._variable(TOKEN_VARIABLE)
        if self._variable(KEY_VARIABLE):
            if not self._variable(SECRET_VARIABLE):
                raise WrongUsage(f"{KEY_VARIABLE} is set, but {SECRET_VARIABLE} is not. Set both, or neither.")
            return self._variable(KEY_VARIABLE), self._variable(SECRET_VARIABLE), ""
        return of_context

    def _credentials_of_flags(self) -> tuple[str, str, str]:
        key, token, token_file = self._flag("key"), self._flag("token"), self._flag("token_file")
        secret_file = self._flag("secret_file")
        if token and token_file:
            raise WrongUsage("Use either --token or --token-file, not both.")
        if key and (token or token_file):
            raise WrongUsage("Use either an access key (--key) or the admin token, not both.")
        if token or token_file:
            return "", "", token or read_secret(token_file, "--token-file")
        if not key:
            if secret_file:
                raise WrongUsage("--secret-file needs --key, the id of the access key.")
            return "", "", ""
        if secret_file:
            return key, read_secret(secret_file, "--secret-file"), ""
        if not self._variable(SECRET_VARIABLE):
            raise WrongUsage(f"The secret of --key {key} is missing. Use --secret-file or {SECRET_VARIABLE}.")
        return key, self._variable(SECRET_VARIABLE), ""


def read_secret(path: str, flag: str) -> str:
    """The first line of a file that contains a secret."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.readline(SECRET_BYTES_MAX).strip()
    except (OSError, UnicodeDecodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise WrongUsage(f"{flag}: {path} cannot be read: {reason}.") from None
    if not text:
        raise WrongUsage(f"{flag}: {path} is empty. It must contain the secret on its first line.")
    return text


def checked_url(url: str) -> str:
    """The URL without a slash at its end. Raises WrongUsage if it is not the URL of a server."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or parts.username is not None:
        raise WrongUsage(f"{url!r} is not a valid URL of a server. Example: {DEFAULT_URL}")
    return url.rstrip("/")


# --- requests ---------------------------------------------------------------------------------


def connect(arguments: argparse.Namespace, flags: Mapping[str, str] | None = None) -> Server:
    """The server that the command's flags, the environment or the context name. It is closed when the command ends.

    `flags` has the command's flag for each field of the REST API that an error may name.
    """
    server = Server(resolve(arguments), flags)
    arguments.resources.callback(server.close)
    return server


def queue_path(name: str, *rest: str) -> str:
    """The path of a queue, or of something in it, in the REST API."""
    return "/".join(("/v1/queues", quote(name, safe=""), *rest))


class Server:
    """The REST API of one server, over one connection. Errors are BatonErrors with the server's text."""

    def __init__(self, target: Target, flags: Mapping[str, str] | None = None) -> None:
        self.target = target
        self._flags = flags or {}
        parts = urlsplit(target.url)
        assert parts.hostname is not None, "checked by resolve"
        self._prefix = parts.path
        self._authority = parts.netloc
        name = parts.hostname
        self._connection = (
            HTTPSConnection(name, parts.port, timeout=CONNECT_TIMEOUT_S, context=target.tls())
            if parts.scheme == "https"
            else HTTPConnection(name, parts.port, timeout=CONNECT_TIMEOUT_S)
        )
        self._signer: Any = None
        self.status = 0  # of the last answer

    @property
    def url(self) -> str:
        return self.target.url

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str, **query: Any) -> Any:
        """Parameters that are None are left out."""
        return self.call("GET", path, query=query)

    def post(self, path: str, body: Any = None, *, timeout_s: float = TIMEOUT_S, **query: Any) -> Any:
        return self.call("POST", path, body, query=query, timeout_s=timeout_s)

    def fetch(self, path: str, query: Mapping[str, Any], timeout_s: float = TIMEOUT_S) -> tuple[bytes, float | None]:
        """The bytes of an answer that is not JSON. If the server asks to retry later: no bytes, and after how many
        seconds. Raises the error that the server reports.
        """
        target = f"{self._prefix}{path}?{urlencode({name: _text(value) for name, value in query.items()})}"
        response, answer = self._exchange("GET", target, b"", timeout_s)
        wait = response.getheader("Retry-After", "1")
        wait_s = float(wait) if wait.isdecimal() else 1.0
        if response.status in (429, 503) and wait_s <= RETRY_MAX_S:
            return b"", wait_s
        if response.status != 200:
            self._decoded(path, response, answer)
        return answer, None

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Any:
        """The decoded answer; None if it is empty. Raises the error that the server reports.

        `body` is a value to encode, or bytes that are JSON already.
        """
        given = {name: _text(value) for name, value in (query or {}).items() if value is not None}
        target = self._prefix + path + (f"?{urlencode(given, quote_via=quote)}" if given else "")
        encoded = body if isinstance(body, bytes) else json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        data = b"" if body is None else encoded
        response, answer = self._exchange(method, target, data, timeout_s)
        return self._decoded(path, response, answer)

    def _exchange(self, method: str, target: str, data: bytes, timeout_s: float) -> tuple[HTTPResponse, bytes]:
        reused = self._connection.sock is not None
        try:
            return self._send(method, target, data, timeout_s)
        except (HTTPException, OSError) as problem:
            self._connection.close()
            # The server may have closed an idle connection. Reading again changes nothing.
            if not (reused and method == "GET" and not isinstance(problem, TimeoutError)):
                raise self._unreachable(problem) from None
        try:
            return self._send(method, target, data, timeout_s)
        except (HTTPException, OSError) as problem:
            self._connection.close()
            raise self._unreachable(problem) from None

    def _send(self, method: str, target: str, data: bytes, timeout_s: float) -> tuple[HTTPResponse, bytes]:
        connection = self._connection
        if connection.sock is None:
            connection.connect()
        connection.sock.settimeout(timeout_s)
        # The signature covers the host, so it is sent exactly as it is signed.
        headers = {"Host": self._authority, "User-Agent": f"baton-cli/{__version__}", "Accept": "application/json"}
        if data:
            headers["Content-Type"] = "application/json"
        headers.update(self._authentication(method, target, data))
        connection.request(method, target, data or None, headers)
        response = connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX + 1)
        self.status = response.status
        if len(answer) > ANSWER_BYTES_MAX:
            raise InvalidInput(f"The answer of the server is larger than {ANSWER_BYTES_MAX >> 20} MiB.")
        return response, answer

    def _authentication(self, method: str, target: str, data: bytes) -> dict[str, str]:
        if self.target.token:
            account = {"Baton-Account": self.target.account} if self.target.account else {}
            return {"Authorization": f"Bearer {self.target.token}", **account}
        if self.target.key:
            if self._signer is None:
                from batonq.client.signing import Signer  # loads the client, which only signed requests need

                self._signer = Signer(self.target.key, self.target.secret)
            return dict(self._signer.headers(method, self._authority, target, data))
        if self.target.account:  # a development server believes the account
            return {"Authorization": f"AWS4-HMAC-SHA256 Credential={self.target.account}/baton"}
        return {}

    # --- answers

    def _decoded(self, path: str, response: HTTPResponse, answer: bytes) -> Any:
        kind = response.getheader("Content-Type", "")
        try:
            value = json.loads(answer) if "json" in kind else None
        except ValueError:
            value = None
        if 200 <= response.status < 300:
            if answer and value is None and answer.strip() != b"null":
                raise self._stranger(response)
            return value
        if not isinstance(value, dict) or "code" not in value:
            raise self._stranger(response)
        raise self._error(path, value)

    def _error(self, path: str, problem: dict[str, Any]) -> BatonError:
        code, detail = str(problem["code"]), str(problem.get("detail") or problem.get("message") or "")
        kind = BY_CODE.get(code, BatonError)
        if kind is QueueDoesNotExist:
            return self.no_such_queue(path)
        if kind is AccessDenied:
            return AccessDenied(self._denied(detail))
        if kind is NotFound and detail.endswith("lists all endpoints."):
            return BatonError(
                f"The server at {self.url} does not support this command: it is older than baton {__version__}. "
                "Update the server."
            )
        return kind(in_words_of_commands(detail, self._flags))

    def no_such_queue(self, path: str) -> QueueDoesNotExist:
        """The error for a queue that does not exist, with the names of similar queues."""
        from urllib.parse import unquote

        parts = path.split("/")
        name = unquote(parts[3].partition(":")[0]) if len(parts) > 3 and parts[2] == "queues" else ""
        if not name:
            return QueueDoesNotExist()
        try:
            listed = self.get("/v1/queues", limit=NAMES_FOR_SUGGESTION)["queues"]
            similar = did_you_mean(name, [queue["name"] for queue in listed])
        except BatonError:
            similar = ""
        return QueueDoesNotExist(
            f"Queue {name!r} does not exist at {self.url}.{similar} `baton queue list` lists the queues."
        )

    def _denied(self, detail: str) -> str:
        detail = detail or "The request was refused."
        if not detail.endswith((".", "!", "?")):
            detail += "."
        if self.target.token:
            return f"{self.url} refused the token: {detail}"
        if self.target.key:
            return f"{self.url} refused the key {self.target.key}: {detail}"
        return f"{self.url} requires credentials: {detail} {_CREDENTIALS_HELP}"

    def _stranger(self, response: HTTPResponse) -> Unreachable:
        return Unreachable(
            f"The server at {self.url} ({self.target.origin}) is not a Baton server: it answered "
            f"{response.status} {response.reason} with {response.getheader('Content-Type') or 'no content type'}. "
            "Check the URL."
        )

    def _unreachable(self, problem: Exception) -> BatonError:
        where = f"{self.url} ({self.target.origin})"
        advice = f"Start a server with `baton serve`, or name another one with --url, {URL_VARIABLE} or a context."
        if isinstance(problem, ssl.SSLCertVerificationError):
            return Unreachable(
                f"The certificate of {where} cannot be verified: {problem.verify_message}. Name its CA with --ca-file, "
                "or use --data on the server's machine."
            )
        if isinstance(problem, ssl.SSLError):
            return Unreachable(f"{where} does not use TLS. Use a URL that begins with http://.")
        if isinstance(problem, ConnectionRefusedError):
            return Unreachable(f"No server listens at {where}. {advice}")
        if isinstance(problem, TimeoutError):
            return Unreachable(f"{where} did not answer in time. Check the URL and the network.")
        if isinstance(problem, OSError) and not isinstance(problem, ConnectionError):
            return Unreachable(f"{where} cannot be reached: {problem.strerror or problem}. {advice}")
        if self.url.startswith("http:"):
            return Unreachable(
                f"{where} closed the connection without an answer. If the server uses TLS, use a URL that begins with "
                "https://. Otherwise check that a Baton server listens there."
            )
        return Unreachable(f"{where} closed the connection without an answer. Check that a Baton server listens there.")


def in_words_of_commands(text: str, flags: Mapping[str, str] | None = None) -> str:
    """An error of the REST API for a user who has typed a command: with flags, without requests and endpoints."""
    text = _FORMAT.sub(r"The \1 is not valid. ", text.replace(OPENING, ""))
    for endpoint, command in _COMMANDS.items():
        text = text.replace(f"{endpoint} lists", f"`{command}` lists")
    return _FIELD.sub(lambda found: (flags or {}).get(found[found.lastindex or 0], found[0]), text)


def _text(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)
