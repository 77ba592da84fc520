"""The dashboard as an HTTP application: sessions, routing, security headers, errors and live updates."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import cached_property
from secrets import token_bytes
from time import monotonic, time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import msgspec

from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller
from batonq.api.ui import assets, live
from batonq.api.ui.access import DashboardAccess
from batonq.api.ui.backend import Backend, InProcessRest, Problem
from batonq.api.ui.routes import Handler, Route
from batonq.api.ui.sessions import (
    NOTICE_LENGTH_MAX,
    SESSION_S,
    Session,
    Sessions,
    SignInLimit,
    cookie_name,
    cookie_of,
    set_cookie,
)
from batonq.api.ui.view import Data, Page, Redirect, View
from batonq.core.catalog.entries import READ
from batonq.errors import BatonError
from batonq.node.tasks import off_the_loop

if TYPE_CHECKING:
    from batonq.api.ui.rendering import Renderer
    from batonq.api.ui.routes import Routes

HTML = "text/html; charset=utf-8"
JSON = "application/json"
HOME = "/ui"
EVENTS = "/ui/events"
SIGN_IN = "/ui/sign-in"
SIGN_OUT = "/ui/sign-out"
FIELDS_MAX = 1_200  # of a form or a query: a page of 1,000 messages may be selected
TOKEN_FIELD = "form_token"
NOTICE_S = 60
LOAD_AFTER_S = 0.5  # after the server listens: it may have a lot to do at first
PAUSE_S = 0.005  # between two templates, so that requests are not delayed
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = (
    ("Content-Security-Policy", POLICY),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
)
NO_STORE = ("Cache-Control", "no-store")

logger = logging.getLogger("batonq.ui")


class UiApp:
    """Handles `/ui` and everything below it, and `/` for browsers. `read_only` refuses every change."""

    def __init__(
        self,
        rest: InProcessRest,
        access: DashboardAccess,
        *,
        read_only: bool = False,
        wall: Callable[[], float] = time,
        seconds: Callable[[], float] = monotonic,
        random_bytes: Callable[[int], bytes] = token_bytes,
    ) -> None:
        self._rest = rest
        self._access = access
        self._read_only = read_only
        self._wall = wall
        self._sessions = Sessions(access.session_keys, random_bytes, wall)
        self._sign_ins = SignInLimit(seconds)
        self.streams = live.LiveStreams()
        self._loaded = False
        self._loading: asyncio.Task[None] | None = None
        self._hurry = threading.Event()  # somebody waits for a page

    @cached_property
    def _routes(self) -> Routes:
        from batonq.api.ui.pages import ROUTES
        from batonq.api.ui.routes import Routes

        return Routes(ROUTES)

    @cached_property
    def _renderer(self) -> Renderer:
        from batonq.api.ui.rendering import renderer

        return renderer()

    def load_soon(self) -> None:
        """Import and compile everything that pages need, in the background, so that the first page does not wait."""
        asyncio.get_running_loop().call_later(LOAD_AFTER_S, self._begin_loading)

    def _begin_loading(self) -> asyncio.Task[None]:
        if self._loading is None:
            self._loading = asyncio.create_task(self._load_once())
        return self._loading

    async def _load_once(self) -> None:
        try:
            await off_the_loop(self._load)  # off the event loop: it takes a quarter of a second
            self._loaded = True
        finally:
            self._loading = None  # if it has failed, the next page tries again

    def _load(self) -> None:
        self._routes.find(HOME)
        self._renderer.load(lambda: self._hurry.wait(PAUSE_S))

    # --- a request

    async def handle(self, request: Request) -> Response:
        if request.path.startswith(assets.PREFIX):
            response = assets.serve(request)
            response.headers = (*response.headers, *HEADERS)
            return response
        if request.method not in ("GET", "HEAD", "POST"):
            return self._answer(request, Response(405, b"", HTML, (("Allow", "GET, HEAD, POST"),)))
        try:
            if not self._loaded:
                self._hurry.set()
                await asyncio.shield(self._begin_loading())
            return await self._serve(request)
        except Problem as problem:
            return self._problem(request, problem)
        except BatonError as error:  # for example, the catalog cannot be reached, so no key can be checked
            return self._problem(request, Problem(error.status, error.code, error.message, retryable=error.retryable))
        except Exception:
            logger.exception("a page failed: %s %s", request.method, request.path[:256])
            return self._problem(request, Problem(500, "internal", "This page failed. The server's log says why."))

    def has_session(self, headers: dict[bytes, bytes], target: bytes) -> bool:
        """Whether a request for a page, of which only the head was received, has a valid session."""
        return target.startswith(b"/ui/") and self._session(Request("POST", "/ui", "", headers)) is not None

    async def _serve(self, request: Request) -> Response:
        session = self._session(request)
        if request.path == SIGN_IN:
            return self._sign_in(request)
        caller = self._caller(request, session)
        if caller is None:
            return self._to_sign_in(request)
        if request.method == "POST":
            return await self._post(request, session, caller)
        if request.path == EVENTS:
            return self._events(request, session, caller)
        made = None
        if session is None and not self._access.secured:
            made = session = self._sessions.make("open")
        found = self._found(request.path)
        if found is None or found[0].show is None:
            raise Problem(404, "not_found", f"There is no page {request.path[:200]}.")
        route, names = found
        assert route.show is not None
        view = self._view(request, session, caller, names)
        return await self._run(route, route.show, view, session, made)

    async def _post(self, request: Request, session: Session | None, caller: Caller) -> Response:
        pairs = _pairs(_form(request))
        if session is None or not self._sessions.accepts_form(session, dict(pairs).get(TOKEN_FIELD, "")):
            raise Problem(
                403, "stale_form", "This form is not valid any more. Go back, reload the page, and send again."
            )
        if request.path == SIGN_OUT:
            self._sessions.end(session)
            over = set_cookie(self._cookie_name(request), "", age_s=0, secure=request.scheme == "https")
            return self._answer(request, Response(303, b"", HTML, (("Location", SIGN_IN), over)))
        found = self._found(request.path)
        if found is None or found[0].act is None:
            raise Problem(404, "not_found", f"There is no form {request.path[:200]}.")
        route, names = found
        assert route.act is not None
        view = self._view(request, session, caller, names, pairs)
        if not view.can_write:
            raise Problem(403, "read_only", view.why_no_changes)
        return await self._run(route, route.act, view, session, None)

    async def _run(
        self, route: Route, handler: Handler, view: View, session: Session | None, made: Session | None
    ) -> Response:
        request = view.request
        secure = request.scheme == "https"
        result = await handler(view)
        headers: list[tuple[str, str]] = []
        if made is not None:
            cookie = self._sessions.cookie(made)
            headers.append(set_cookie(self._cookie_name(request), cookie, age_s=SESSION_S, secure=secure))
        notice_name = self._cookie_name(request, "notice")
        if isinstance(result, Redirect):
            headers.append(("Location", result.path))
            if result.notice:
                sealed = self._sessions.seal(b"notice", result.notice[:NOTICE_LENGTH_MAX].encode())
                headers.append(set_cookie(notice_name, sealed, age_s=NOTICE_S, secure=secure))
            return self._answer(request, Response(303, b"", HTML, headers))
        if isinstance(result, Data):
            return self._answer(request, Response(200, msgspec.json.encode(result.value), JSON, headers))
        if isinstance(result, Response):
            result.headers = (NO_STORE, *result.headers, *headers)
            return result
        notice = self._notice(request)
        if notice:
            headers.append(set_cookie(notice_name, "", age_s=0, secure=secure))
        shared = self._shared(view, route, session, notice)
        return self._answer(request, Response(result.status, self._renderer.page(result, shared), HTML, headers))

    def _found(self, path: str) -> tuple[Route, dict[str, str]] | None:
        return self._routes.find(HOME if path == "/" else path)

    def _view(
        self,
        request: Request,
        session: Session | None,
        caller: Caller,
        names: dict[str, str],
        pairs: list[tuple[str, str]] | None = None,
    ) -> View:
        who = ""
        if self._access.secured:
            who = session.key if session is not None and session.kind == "key" else "admin"
        return View(
            request=request,
            backend=Backend(self._rest, caller, request.peer, writable=not self._read_only and caller.role != READ),
            names=names,
            query=dict(_pairs(request.query)),
            pairs=pairs or [],
            now_ms=int(self._wall() * 1000),
            address=f"{request.scheme}://{request.header(b'host', 'localhost')}",
            secured=self._access.secured,
            account=caller.account,
            who=who,
            operator=caller.operator,
            read_only=self._read_only,
        )

    def _shared(self, view: View, route: Route, session: Session | None, notice: str = "") -> dict[str, Any]:
        """The values that every template has."""
        return {
            "view": view,
            "now_ms": view.now_ms,
            "tab": route.tab,
            "form_token": self._sessions.form_token(session) if session is not None else "",
            "notice": notice,
        }

    # --- live updates

    def _events(self, request: Request, session: Session | None, caller: Caller) -> Response:
        target = urlsplit(dict(_pairs(request.query)).get("page", ""))
        found = self._found(target.path)
        if found is None or found[0].show is None:
            raise Problem(404, "not_found", "There is no such page.")
        account = "" if caller.operator else caller.account
        if self.streams.full(account):
            text = b"Too many dashboards are open: this one gets no live updates."
            return self._answer(request, Response(503, text, HTML, (("Retry-After", "30"),)))
        route, names = found
        show = found[0].show
        page_request = Request("GET", target.path, target.query, request.headers, b"", request.peer)
        page_request.scheme = request.scheme

        async def render() -> live.Blocks | None:
            now = self._session(request)
            if (now is None) != (session is None) or self._caller(request, now) is None:
                return None
            view = self._view(page_request, session, caller, names)
            page = await show(view)
            if not isinstance(page, Page):
                return None
            return self._renderer.blocks(page, self._shared(view, route, session))

        stream = self.streams.events(render, account)
        headers = (NO_STORE, ("X-Accel-Buffering", "no"), *HEADERS)
        return Response(200, b"", live.CONTENT_TYPE, headers, stream=stream)

    # --- signing in and out

    def _sign_in(self, request: Request) -> Response:
        target = _local(dict(_pairs(request.query)).get("next", ""))
        if not self._access.secured:
            return self._answer(request, Response(303, b"", HTML, (("Location", target),)))
        problem = ""
        if request.method == "POST":
            form = dict(_pairs(_form(request)))
            target = _local(form.get("next", ""))
            wait_s = self._sign_ins.wait_s(request.peer)
            made = None if wait_s else self._signed_in(form)
            if made is not None:
                self._sign_ins.forget(request.peer)
                name, cookie = self._cookie_name(request), self._sessions.cookie(made)
                header = set_cookie(name, cookie, age_s=SESSION_S, secure=request.scheme == "https")
                return self._answer(request, Response(303, b"", HTML, (("Location", target), header)))
            problem = (
                f"Too many attempts from this address. Try again in {wait_s} seconds."
                if wait_s
                else "The token, or the key and its secret, is not valid."
            )
        page = Page("Sign in", "sign_in.html", values={"problem": problem, "next": target})
        page.status = 200 if not problem else 403
        view = self._view(request, None, Caller("", "", READ), {})
        body = self._renderer.page(page, self._shared(view, Route(SIGN_IN), None))
        return self._answer(request, Response(page.status, body, HTML))

    def _signed_in(self, form: dict[str, str]) -> Session | None:
        token, key, secret = (form.get(name, "").strip() for name in ("token", "key", "secret"))
        if token:
            return self._sessions.make("token") if self._access.is_admin_token(token) else None
        return self._sessions.make("key", key) if key and self._access.knows(key, secret) else None

    def _to_sign_in(self, request: Request) -> Response:
        if request.path == EVENTS or request.method == "POST":
            raise Problem(401, "signed_out", "You are signed out. Sign in again, then repeat this.")
        here = request.path + ("?" + request.query if request.query else "")
        location = SIGN_IN + ("?" + urlencode({"next": here}) if here not in ("/", HOME) else "")
        return self._answer(request, Response(303, b"", HTML, (("Location", location),)))

    def _session(self, request: Request) -> Session | None:
        cookie = cookie_of(request.header(b"cookie"), self._cookie_name(request))
        session = self._sessions.read(cookie) if cookie else None
        return session if session is None or (session.kind == "open") != self._access.secured else None

    def _caller(self, request: Request, session: Session | None) -> Caller | None:
        if not self._access.secured:
            return self._access.operator()
        kind, _, token = request.header(b"authorization").partition(" ")
        if kind.lower() == "bearer" and request.method != "POST":  # forms need a session
            return self._access.operator() if self._access.is_admin_token(token.strip()) else None
        return None if session is None else self._access.caller(session)

    def _cookie_name(self, request: Request, purpose: str = "session") -> str:
        return cookie_name(request.header(b"host"), purpose)

    def _notice(self, request: Request) -> str:
        sealed = cookie_of(request.header(b"cookie"), self._cookie_name(request, "notice"))
        content = self._sessions.unseal(b"notice", sealed) if sealed else None
        return content.decode("utf-8", "replace") if content else ""

    # --- answers

    def _problem(self, request: Request, problem: Problem) -> Response:
        """An error as a page: what happened, and what can be done."""
        if request.path == EVENTS or request.path.startswith("/ui/data/"):
            body = msgspec.json.encode({"detail": problem.detail})
            return self._answer(request, Response(problem.status, body, JSON))
        title = "Not found" if problem.status == 404 else "Refused" if problem.status == 403 else "Something failed"
        page = Page(title, "problem.html", problem.detail, "warning", {"problem": problem}, problem.status)
        session = self._session(request)
        try:
            caller = self._caller(request, session)
        except BatonError:
            caller = None
        view = self._view(request, session, caller or Caller("", "", READ), {})
        body = self._renderer.page(page, self._shared(view, Route(request.path), session))
        return self._answer(request, Response(problem.status, body, HTML))

    @staticmethod
    def _answer(request: Request, response: Response) -> Response:
        response.headers = (NO_STORE, *HEADERS, *response.headers)
        return response


def _form(request: Request) -> str:
    """The text of a submitted form. A browser says whether a page of another site has sent it."""
    if request.header(b"sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Problem(403, "foreign_form", "The form was sent by a page of another site, so it was refused.")
    return request.body.decode("utf-8", "replace")


def _pairs(text: str) -> list[tuple[str, str]]:
    """The fields of a query or a form."""
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=FIELDS_MAX)
    except ValueError:
        raise Problem(400, "invalid_input", f"The request has more than {FIELDS_MAX} fields.") from None


def _local(path: str) -> str:
    """A path of the dashboard to go to after signing in; any other text leads to the first page."""
    parts = urlsplit(path)
    safe = path.startswith(HOME) and not parts.scheme and not parts.netloc and "\\" not in unquote(path)
    return path if safe and path.isascii() and path.isprintable() else HOME
