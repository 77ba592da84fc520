"""Calls between nodes are signed with the cluster's secret. Each call is valid for one process, and once.

Every call carries a stamp. The signature covers the stamp, the method, the path, the call id and the body. The stamp
has:

- the life of the receiver: a random name that each process takes when it starts. A call that was captured on its way to
  one process is refused by every other process, and by the next process on the same node;
- the sender and a number. A receiver remembers which of a sender's numbers it has seen;
- the time, by the receiver's own monotonic clock. A call that arrives late is refused before the receiver forgets that
  it has executed it (node_server.py), so a copy that was held back is not executed again.

A sender learns a receiver's life and time from a challenge: the answer to a stamp that is not valid. A refused call was
not executed, so it is stamped again and resent. No wall clock is involved. When a call is repeated after a lost answer,
it has the same call id and another stamp.

A cluster may have several secrets while they are rotated, one per line of the file. The first one signs, and all of
them are accepted. A challenge is signed with the secret that signed the call, which both sides know.

Without a secret nothing is signed. The signature keeps strangers out and hides nothing: TLS does that.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from batonq.errors import AccessDenied

SIGNATURE_HEADER = "x-baton-signature"
STAMP_HEADER = "x-baton-stamp"
CHALLENGE_HEADER = "x-baton-challenge"
METHOD = "POST"
LATE_MS = 15_000  # how long a call may be in transit; with EARLY_MS no longer than answers are remembered
EARLY_MS = 5_000  # how far two monotonic clocks may drift apart until the sender is told the time again
WINDOW = 1 << 14  # numbers of one sender that are remembered; a lower one is refused
SENDERS_MAX = 256  # beyond this all are forgotten, and the receiver takes another life
RECEIVERS_MAX = 1_024  # that a sender remembers
STAMP_BYTES_MAX = 200
UNKNOWN = "-"  # the life of a receiver that was not asked yet


def split_secrets(text: bytes) -> list[bytes]:
    """The secrets in a secret file: one per line, the one that signs first."""
    return [line.strip() for line in text.splitlines() if line.strip()]


class _Key:
    def __init__(self, secret: bytes) -> None:
        self._begun = blake2b(key=blake2b(secret).digest(), digest_size=32)

    def sign(self, head: str, body: bytes) -> str:
        mac = self._begun.copy()
        mac.update(head.encode("latin-1"))
        mac.update(body)
        return mac.hexdigest()


def _call(method: str, path: str, stamp: str, call: str) -> str:
    """The text that is signed before the body. None of its parts can contain a newline."""
    return f"{method} {path}\n{stamp}\n{call}\n"


def _challenge(signature: str, life: str, now_ms: int) -> str:
    """The text that is signed for a challenge: a challenge answers one call."""
    return f"challenge\n{signature}\n{life}\n{now_ms}\n"


class _Receiver(NamedTuple):
    life: str = UNKNOWN
    ahead_ms: int = 0  # how far the receiver's monotonic clock is ahead of ours


class Signer:
    """Signs the calls of one process. `secret` is the text of the secret file."""

    def __init__(self, secret: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._key = _Key(split_secrets(secret)[0])
        self._name = random_bytes(16).hex()
        self._number = 0  # of the last call to any receiver: none is used twice
        self._receivers: dict[str, _Receiver] = {}

    def sign(self, address: str, path: str, call: str, body: bytes, now_s: float) -> tuple[str, str]:
        """The stamp and the signature of a call that is about to be sent."""
        receiver = self._receivers.get(address)
        if receiver is None:
            if len(self._receivers) >= RECEIVERS_MAX:
                self._receivers.clear()
            receiver = self._receivers[address] = _Receiver()
        self._number += 1
        stamp = f"{receiver.life}.{self._name}.{self._number}.{int(now_s * 1000) + receiver.ahead_ms}"
        return stamp, self._key.sign(_call(METHOD, path, stamp, call), body)

    def learn(self, address: str, challenge: str, signature: str, now_s: float) -> bool:
        """Learn from a challenge that answers the call with this signature. Returns whether the challenge is valid."""
        life, _, rest = challenge.partition(".")
        told_ms, _, given = rest.partition(".")
        if not (told_ms.isascii() and told_ms.isdigit() and len(told_ms) < 18):
            return False
        expected = self._key.sign(_challenge(signature, life, int(told_ms)), b"")
        if not hmac.compare_digest(expected.encode(), given.encode("latin-1", "replace")):
            return False
        self._receivers[address] = _Receiver(life, int(told_ms) - int(now_s * 1000))
        return True


class _Numbers:
    """Which of a sender's last WINDOW numbers were seen. Older numbers are not accepted."""

    __slots__ = ("_highest", "_seen")

    def __init__(self) -> None:
        self._highest = 0
        self._seen = bytearray(WINDOW)

    def is_before(self, number: int) -> bool:
        return number <= self._highest - WINDOW

    def take(self, number: int) -> bool:
        """Record a number. Returns whether it was seen for the first time."""
        at = number % WINDOW
        if number > self._highest:
            self._forget_until(number)
            self._highest = number
        elif self._seen[at]:
            return False
        self._seen[at] = 1
        return True

    def _forget_until(self, number: int) -> None:
        """Clear the entries for the numbers between the highest and this one, which were not seen."""
        if number - self._highest >= WINDOW:
            self._seen = bytearray(WINDOW)
            return
        start, stop = (self._highest + 1) % WINDOW, number % WINDOW
        if start <= stop:
            self._seen[start:stop] = bytes(stop - start)
        else:
            self._seen[start:] = bytes(WINDOW - start)
            self._seen[:stop] = bytes(stop)


class Verifier:
    """Checks the calls that this process gets. `secret` is the text of the secret file."""

    def __init__(self, secret: bytes, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        self._keys = [_Key(each) for each in split_secrets(secret)]
        self._random_bytes = random_bytes
        self._life = random_bytes(16).hex()
        self._senders: dict[str, _Numbers] = {}

    def verify(
        self, method: str, path: str, call: str, body: bytes, stamp: bytes, given: bytes, now_s: float
    ) -> str | None:
        """Check a call. None: the call may be executed.

        Otherwise returns a challenge: the call must not be executed, and its sender may send it again with another
        stamp. Raises AccessDenied.
        """
        stamped = stamp.decode("latin-1")
        text = _call(method, path, stamped, call)
        for key in self._keys:
            signature = key.sign(text, body)
            if hmac.compare_digest(signature.encode(), given):
                break
        else:
            raise AccessDenied(
                "The request is not signed with the cluster secret. Set --cluster-secret-file to the same file on "
                "every node and for the baton command."
            )
        now_ms = int(now_s * 1000)
        read = _read(stamp)
        if read is None:
            raise AccessDenied(f"The request's {STAMP_HEADER} header cannot be read.")
        life, sender, number, at_ms = read
        if life != self._life or not now_ms - LATE_MS <= at_ms <= now_ms + EARLY_MS:
            return self._challenged(key, signature, now_ms)
        numbers = self._senders.get(sender)
        if numbers is None:
            if len(self._senders) >= SENDERS_MAX:
                self._senders.clear()
                self._life = self._random_bytes(16).hex()
                return self._challenged(key, signature, now_ms)
            numbers = self._senders[sender] = _Numbers()
        if numbers.is_before(number):
            return self._challenged(key, signature, now_ms)
        if not numbers.take(number):
            raise AccessDenied("This request was received before. Replayed requests are refused.")
        return None

    def _challenged(self, key: _Key, signature: str, now_ms: int) -> str:
        proof = key.sign(_challenge(signature, self._life, now_ms), b"")
        return f"{self._life}.{now_ms}.{proof}"


def _read(stamp: bytes) -> tuple[str, str, int, int] | None:
    """Life, sender, number and time."""
    if len(stamp) > STAMP_BYTES_MAX:
        return None
    match stamp.split(b"."):
        case [life, sender, number, at_ms] if number.isdigit() and at_ms.isdigit():
            return life.decode("latin-1"), sender.decode("latin-1"), int(number), int(at_ms)
    return None
