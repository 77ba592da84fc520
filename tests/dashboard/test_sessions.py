"""Sealed cookies and form tokens: what is accepted, and above all what is not."""

from __future__ import annotations

import pytest

from batonq.api.ui.sessions import (
    COOKIE_LENGTH_MAX,
    ENDED_MAX,
    SESSION_S,
    Sessions,
    SignInLimit,
    cookie_name,
    cookie_of,
    set_cookie,
)


class World:
    def __init__(self) -> None:
        self.now_s = 1_000_000.0
        self.keys = {1: b"a" * 32}
        self.drawn = 0

    def random_bytes(self, count: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(count, "big")

    def sessions(self) -> Sessions:
        return Sessions(lambda: self.keys, self.random_bytes, lambda: self.now_s)


def test_a_session_comes_back_from_its_cookie_on_another_node() -> None:
    world = World()
    session = world.sessions().make("key", "BATONKEY")
    assert world.sessions().read(world.sessions().cookie(session)) == session


def test_a_session_expires() -> None:
    world = World()
    sessions = world.sessions()
    cookie = sessions.cookie(sessions.make("open"))
    world.now_s += SESSION_S - 1
    assert sessions.read(cookie) is not None
    world.now_s += 2
    assert sessions.read(cookie) is None


def test_a_session_that_was_signed_out_is_refused() -> None:
    sessions = World().sessions()
    session = sessions.make("token")
    cookie = sessions.cookie(session)
    sessions.end(session)
    assert sessions.read(cookie) is None


def test_the_memory_of_ended_sessions_is_bounded() -> None:
    world = World()
    sessions = world.sessions()
    first = sessions.make("token")
    sessions.end(first)
    world.now_s += SESSION_S + 1
    for _ in range(ENDED_MAX + 1):
        sessions.end(sessions.make("token"))
    assert len(sessions._ended) <= ENDED_MAX
    assert first.id not in sessions._ended


def test_a_cookie_survives_the_rotation_of_keys_and_ends_with_its_key() -> None:
    world = World()
    sessions = world.sessions()
    cookie = sessions.cookie(sessions.make("open"))
    world.keys = {1: b"a" * 32, 2: b"b" * 32}
    assert sessions.read(cookie) is not None
    assert sessions.make("open").sealed_with == 2
    world.keys = {2: b"b" * 32}
    assert sessions.read(cookie) is None


@pytest.mark.parametrize("place", [0, 2, 10, -1, -10])
def test_a_changed_cookie_is_refused(place: int) -> None:
    sessions = World().sessions()
    cookie = [*sessions.cookie(sessions.make("token"))]
    cookie[place] = "A" if cookie[place] != "A" else "B"
    assert sessions.read("".join(cookie)) is None


@pytest.mark.parametrize(
    "cookie",
    ["", ".", "..", "1..", "1.AA.AA", "x.AA.AA", "9.AA.AA", "1.%%.AA", "1.AA", "9" * 30 + ".A.A", "1.é.A", "1.A.A"],
)
def test_what_is_no_cookie_is_refused(cookie: str) -> None:
    assert World().sessions().read(cookie) is None


def test_a_long_cookie_is_refused_before_it_is_decoded() -> None:
    assert World().sessions().read("1." + "A" * COOKIE_LENGTH_MAX) is None


def test_a_notice_cannot_be_used_as_a_session() -> None:
    sessions = World().sessions()
    cookie = sessions.cookie(sessions.make("token"))
    assert sessions.unseal(b"notice", cookie) is None
    assert sessions.unseal(b"notice", sessions.seal(b"notice", b"Purged")) == b"Purged"


def test_a_form_token_belongs_to_one_session() -> None:
    sessions = World().sessions()
    one, other = sessions.make("open"), sessions.make("open")
    assert sessions.accepts_form(one, sessions.form_token(one))
    assert not sessions.accepts_form(one, sessions.form_token(other))
    assert not sessions.accepts_form(one, "")
    assert not sessions.accepts_form(one, "é")


def test_cookies_of_servers_on_one_host_do_not_collide() -> None:
    assert cookie_name("localhost:9324") != cookie_name("localhost:9325")
    assert cookie_name("queues.example") == "baton-session"
    assert cookie_name("[::1]:80", "notice") == "baton-notice-80"


def test_reading_and_writing_cookies() -> None:
    assert cookie_of("a=1; baton-session=x=y; b=2", "baton-session") == "x=y"
    assert cookie_of("a=1", "b") == ""
    assert set_cookie("n", "v", age_s=5, secure=True) == (
        "Set-Cookie",
        "n=v; Path=/; Max-Age=5; HttpOnly; SameSite=Strict; Secure",
    )
    assert "Secure" not in set_cookie("n", "v", age_s=5, secure=False)[1].replace("SameSite", "")


def test_sign_in_attempts_are_limited_per_address() -> None:
    now_s = 0.0
    limit = SignInLimit(lambda: now_s)
    assert [limit.wait_s("a") for _ in range(SignInLimit.ATTEMPTS_MAX)] == [0] * SignInLimit.ATTEMPTS_MAX
    assert limit.wait_s("a") == SignInLimit.WINDOW_S
    assert limit.wait_s("b") == 0
    now_s = SignInLimit.WINDOW_S - 0.5
    assert limit.wait_s("a") == 1
    now_s = SignInLimit.WINDOW_S
    assert limit.wait_s("a") == 0


def test_addresses_that_try_are_remembered_in_bounded_space() -> None:
    limit = SignInLimit(lambda: 0.0)
    for number in range(SignInLimit.ADDRESSES_MAX * 2):
        limit.wait_s(str(number))
    assert len(limit._attempts) <= SignInLimit.ADDRESSES_MAX
