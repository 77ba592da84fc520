"""Signatures of calls between nodes: what a receiver takes, what it forgets, and what a sender has to be told."""

from __future__ import annotations

from random import Random

import pytest

from batonq.errors import AccessDenied
from batonq.node.cluster import signing
from batonq.node.cluster.node_server import REMEMBERED_S
from batonq.node.cluster.signing import EARLY_MS, LATE_MS, SENDERS_MAX, WINDOW, Signer, Verifier

SECRET = b"a secret of some length"
PATH = "/internal/any"
THERE = "http://there"


class Line:
    """A sender and a receiver whose steady clocks have nothing in common."""

    def __init__(self, verifier: Verifier | None = None, secret: bytes = SECRET) -> None:
        self.signer = Signer(secret)
        self.verifier = verifier or Verifier(SECRET)
        self.sender_s = 10.0
        self.receiver_s = 9_000.0

    def pass_s(self, seconds: float) -> None:
        self.sender_s += seconds
        self.receiver_s += seconds

    def sign(self) -> tuple[str, str]:
        return self.signer.sign(THERE, PATH, "call", b"body", self.sender_s)

    def arrive(
        self, signed: tuple[str, str], path: str = PATH, call: str = "call", body: bytes = b"body"
    ) -> str | None:
        stamp, signature = signed
        return self.verifier.verify("POST", path, call, body, stamp.encode(), signature.encode(), self.receiver_s)

    def call(self) -> tuple[str, str]:
        """One that is taken, after as many challenges as a node allows itself."""
        for _ in range(3):
            signed = self.sign()
            challenge = self.arrive(signed)
            if challenge is None:
                return signed
            assert self.signer.learn(THERE, challenge, signed[1], self.sender_s)
        raise AssertionError("the sender was challenged three times")


def test_a_sender_is_told_once_whom_it_talks_to() -> None:
    line = Line()
    first = line.sign()
    challenge = line.arrive(first)
    assert challenge is not None and line.signer.learn(THERE, challenge, first[1], line.sender_s)
    for _ in range(50):
        line.pass_s(3_600.0)
        assert line.arrive(line.sign()) is None


def test_a_call_is_taken_once_and_unchanged() -> None:
    line = Line()
    taken = line.call()
    for changed in (("/internal/b", "call", b"body"), (PATH, "cal", b"lbody"), (PATH, "call", b"bod")):
        with pytest.raises(AccessDenied, match="not signed"):
            line.arrive(taken, *changed)
    for _ in range(3):
        line.pass_s(1.0)
        with pytest.raises(AccessDenied, match="received before"):
            line.arrive(taken)


def test_another_secret_is_no_secret() -> None:
    line = Line(secret=b"another secret than theirs")
    with pytest.raises(AccessDenied, match="--cluster-secret-file"):
        line.arrive(line.sign())


def test_a_call_for_another_process_is_not_taken() -> None:
    line = Line()
    taken = line.call()
    line.verifier = Verifier(SECRET)  # another node, or the next process of the same one
    assert line.arrive(taken) is not None
    line.call()


def test_a_call_that_was_held_back_is_not_taken_once_its_answer_may_be_forgotten() -> None:
    line = Line()
    line.call()
    held = [line.sign() for _ in range(2)]
    line.pass_s(LATE_MS / 1000 - 1)
    assert line.arrive(held[0]) is None
    line.pass_s(2)
    assert line.arrive(held[1]) is not None
    assert (LATE_MS + EARLY_MS) / 1000 <= REMEMBERED_S, "a receiver knows what it has run for longer"


def test_clocks_that_drift_apart_cost_a_challenge() -> None:
    for drift_s in (LATE_MS / 1000 + 1, -EARLY_MS / 1000 - 1):
        line = Line()
        line.call()
        line.receiver_s += drift_s
        assert line.arrive(line.sign()) is not None
        line.call()


def test_only_a_receiver_with_the_secret_can_tell_the_time_and_only_in_answer() -> None:
    line = Line()
    first, second = line.sign(), line.sign()
    challenge = line.arrive(first)
    assert challenge is not None
    assert not line.signer.learn(THERE, challenge, second[1], line.sender_s)
    life, now_ms, proof = challenge.split(".")
    for forged in ("", "..", f"{life}.{now_ms}", f"{life}.{int(now_ms) + 1}.{proof}", f"x{challenge}", "\xe9.1.\xe9"):
        assert not line.signer.learn(THERE, forged, first[1], line.sender_s)
    stranger = Line(Verifier(b"another secret than ours"), b"another secret than ours")
    assert not line.signer.learn(THERE, stranger.arrive(stranger.sign()) or "", first[1], line.sender_s)
    assert line.signer.learn(THERE, challenge, first[1], line.sender_s)


def test_calls_arrive_in_any_order_and_none_is_taken_twice() -> None:
    line = Line()
    line.call()
    random = Random(1)
    signed = [line.sign() for _ in range(3 * WINDOW)]
    taken: set[int] = set()
    highest = 0
    for start in range(0, len(signed), 300):
        places = [random.randrange(max(0, start - 2 * WINDOW), min(start + 300, len(signed))) for _ in range(300)]
        for place in places:
            expected = place not in taken
            highest = max(highest, place)
            try:
                challenge = line.arrive(signed[place])
            except AccessDenied:
                assert not expected, "it was never seen"
                continue
            if challenge is None:
                assert expected, "it was seen"
                taken.add(place)
            else:
                assert place <= highest - WINDOW, "what is forgotten is challenged, and nothing else is"
    assert len(taken) > WINDOW


def test_a_receiver_remembers_so_many_senders_and_takes_nothing_that_it_has_forgotten() -> None:
    verifier = Verifier(SECRET)
    lines = [Line(verifier) for _ in range(SENDERS_MAX + 1)]
    captured = [(line, line.call()) for line in lines]
    for line, signed in captured[:-1]:
        assert line.arrive(signed) is not None, "all that was signed before is void"
    with pytest.raises(AccessDenied, match="received before"):
        lines[-1].arrive(captured[-1][1])
    for line in lines[:SENDERS_MAX]:
        line.call()
    assert len(verifier._senders) <= SENDERS_MAX


def test_a_sender_remembers_so_many_receivers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "RECEIVERS_MAX", 2)
    line = Line()
    line.call()
    for number in range(5):
        line.signer.sign(f"http://{number}", PATH, "", b"", line.sender_s)
    line.call()
    assert len(line.signer._receivers) <= 2
