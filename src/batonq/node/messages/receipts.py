"""Receipts: the tokens that name one lease each, sealed so that they cannot be forged.

    offset  size  field
    0       1     version (2)
    1       2     id of the receipt key
    3       2     shard
    5       4     queue number, which is never reused: a re-created queue has different receipts
    9       4     slot of the message
    13      6     sequence of the message
    19      4     lease epoch
    23      10    seal: a part of a keyed BLAKE2b over the tenant and all of the above

Integers are little-endian. The 33 bytes become 44 characters of URL-safe base64, without padding.

One digest of 60 bytes seals six messages, because most messages are leased with their neighbours. The digest covers the
tenant, the first 9 bytes, the sequence divided by six, the slot minus the sequence, and the epoch. The remainder of the
sequence selects the message's ten bytes. Knowing some of the seals reveals nothing about the others.
"""

from __future__ import annotations

import struct
from array import array
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import blake2b
from hmac import compare_digest
from itertools import repeat
from typing import NamedTuple

from batonq.core.catalog.entries import ReceiptKey
from batonq.core.commands import Claim, Leases
from batonq.core.shard.state.columns import as_run
from batonq.errors import ReceiptInvalid, Unavailable

VERSION = 2
SEAL_BYTES = 10
SEALS = 6  # per digest
TEXT_LENGTH = 44
STAMPS_MAX = 4_096
RECENT_MAX = 32_768  # receipts of all queues that are remembered by their text
SHOWN_LENGTH_MAX = 200

_HEAD = struct.Struct("<BHHI")
_BODY = struct.Struct("<IQH")  # slot, sequence with the epoch's low half above it, epoch's high half
_RECEIPT = struct.Struct(f"<{_HEAD.size}sIQH{SEAL_BYTES}s")  # head, body as in _BODY, seal
_WHOLE = struct.Struct("<BHHIIIHI")
_HEAD_BYTES = _HEAD.size
_SEALED_BYTES = _WHOLE.size
_RECEIPT_BYTES = _SEALED_BYTES + SEAL_BYTES
_PARTS = struct.Struct(f"{_HEAD_BYTES}s{_BODY.size}s{SEAL_BYTES}s")
_BLOCK = struct.Struct("<QII")  # sequence divided by six, slot minus sequence, epoch
_SEQUENCE_MAX = (1 << 48) - 1
_LOW32 = 0xFFFFFFFF
_FIRST = 1 << 48  # the first epoch, shifted above a sequence
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")
# `+` and `/` of the standard alphabet are not ours: they become `!`, which is in neither alphabet.
_FROM_URL_SAFE = bytes.maketrans(b"-_+/", b"+/!!")

assert _HEAD.size + _BODY.size == _SEALED_BYTES
assert _RECEIPT_BYTES * 4 // 3 == TEXT_LENGTH
assert _RECEIPT_BYTES % 3 == 0, "so that many receipts can be encoded at once and cut apart"


class _Stamp(NamedTuple):
    """What the receipts of one queue on one shard under one key have in common."""

    head: bytes
    state: blake2b  # has hashed the tenant and the head
    recent: dict[str, tuple[int, int, int]]  # receipts sealed recently that have not come back yet


class Receipts:
    """Seals with the newest key, and opens with any key. `set_keys` is called whenever the catalog's keys change."""

    def __init__(self, keys: Iterable[ReceiptKey] = ()) -> None:
        self._keys: dict[int, bytes] = {}
        self._newest = 0
        self._stamps: dict[tuple[str, int, int, int], _Stamp] = {}
        self._recent_left = RECENT_MAX // 2  # receipts until their number is checked
        self.set_keys(keys)

    def set_keys(self, keys: Iterable[ReceiptKey]) -> None:
        self._keys = {key.id: key.key for key in keys}
        self._newest = max(self._keys, default=0)
        self._stamps.clear()

    def seal_leases(self, tenant: str, queue: int, shard: int, leases: Leases) -> list[str]:
        """One receipt per lease. Leases of requests that were served together are sealed together."""
        count = len(leases.slots)
        if not count:
            return []
        sealed: list[str] = leases.shared("receipts", partial(self._seal_run, tenant, queue, shard))
        return sealed if leases.whole is None else sealed[leases.start : leases.start + count]

    def _seal_run(self, tenant: str, queue: int, shard: int, leases: Leases) -> list[str]:
        if leases.epochs:
            return self.seal_claims(tenant, queue, shard, leases.claims())
        slots = leases.slots if isinstance(leases.slots, range) else as_run([*leases.slots])
        return self.seal_first(tenant, queue, shard, slots, leases.sequences)

    def seal_claims(self, tenant: str, queue: int, shard: int, claims: Sequence[tuple[int, int, int]]) -> list[str]:
        """One receipt per (slot, sequence, epoch).

        Most receipts come back soon, for a delete. Until then they are remembered by their text, which saves opening
        them.
        """
        stamp = self._newest_stamp(tenant, queue, shard)
        head, state, _ = stamp
        copy, pack, pack_block = state.copy, _RECEIPT.pack, _BLOCK.pack
        parts: list[bytes] = []
        digests: dict[bytes, bytes] = {}
        for slot, sequence, epoch in claims:
            number, at = divmod(sequence, SEALS)
            block = pack_block(number, (slot - sequence) & _LOW32, epoch)
            digest = digests.get(block)
            if digest is None:
                mac = copy()
                mac.update(block)
                digest = digests[block] = mac.digest()
            seal = digest[at * SEAL_BYTES : at * SEAL_BYTES + SEAL_BYTES]
            parts.append(pack(head, slot, sequence | (epoch & 0xFFFF) << 48, epoch >> 16, seal))
        return self._written(stamp, b"".join(parts), claims)

    def seal_first(
        self, tenant: str, queue: int, shard: int, slots: Sequence[int], sequences: Sequence[int]
    ) -> list[str]:
        """One receipt per first lease. Neighbours are sealed at once."""
        count = len(slots)
        claims = [*zip(slots, sequences, repeat(1), strict=False)]
        first = sequences[0]
        if not isinstance(slots, range) or sequences[-1] != first + count - 1 or not _in_a_row(sequences, first):
            return self.seal_claims(tenant, queue, shard, claims)
        stamp = self._newest_stamp(tenant, queue, shard)
        head, state, _ = stamp
        copy = state.copy
        pack = _BLOCK.pack
        offset = (slots.start - first) & _LOW32
        digests: list[bytes] = []
        for block in range(first // SEALS, (first + count - 1) // SEALS + 1):
            mac = copy()
            mac.update(pack(block, offset, 1))
            digests.append(mac.digest())
        seals = b"".join(digests)[first % SEALS * SEAL_BYTES :]
        whole = _RECEIPT.pack
        parts = [
            whole(head, slot, sequence | _FIRST, 0, seals[at : at + SEAL_BYTES])
            for slot, sequence, at in zip(slots, sequences, range(0, count * SEAL_BYTES, SEAL_BYTES), strict=True)
        ]
        return self._written(stamp, b"".join(parts), claims)

    def _newest_stamp(self, tenant: str, queue: int, shard: int) -> _Stamp:
        newest = self._newest
        stamp = self._stamps.get((tenant, queue, shard, newest))
        if stamp is None:
            stamp = self._stamp(tenant, queue, shard, newest)
            self._keep(tenant, queue, shard, newest, stamp)
        return stamp

    def _written(self, stamp: _Stamp, data: bytes, claims: Sequence[tuple[int, int, int]]) -> list[str]:
        text = b2a_base64(data, newline=False).translate(_TO_URL_SAFE).decode("ascii")
        texts = [text[at : at + TEXT_LENGTH] for at in range(0, len(text), TEXT_LENGTH)]
        stamp.recent.update(zip(texts, claims, strict=True))
        self._recent_left -= len(texts)
        if self._recent_left < 0:
            self._forget()
        return texts

    def _forget(self) -> None:
        """Limit the number of receipts remembered by their text: those of expired leases would stay."""
        if sum([len(stamp.recent) for stamp in self._stamps.values()]) > RECENT_MAX // 2:
            for stamp in self._stamps.values():
                stamp.recent.clear()
        self._recent_left = RECENT_MAX // 2

    def open_at(self, tenant: str, queue: int, text: str) -> tuple[int, Claim]:
        """The message's shard and the claim. Raises ReceiptInvalid when the receipt does not belong to this queue."""
        if len(text) != TEXT_LENGTH or not text.isascii():
            raise invalid(text)
        try:
            data = a2b_base64(text.encode().translate(_FROM_URL_SAFE), strict_mode=True)
        except Base64Error:
            raise invalid(text) from None
        version, key_id, shard, number, slot, low, high, epoch = _WHOLE.unpack_from(data)
        if version != VERSION or number != queue:
            raise invalid(text)
        stamp = self._stamps.get((tenant, queue, shard, key_id))
        known = stamp is not None
        if stamp is None:
            if key_id not in self._keys:
                raise invalid(text)
            stamp = self._stamp(tenant, queue, shard, key_id)
        sequence = low | high << 32
        if not compare_digest(_seal(stamp.state, slot, sequence, epoch), data[_SEALED_BYTES:]):
            raise invalid(text)
        if not known:
            self._keep(tenant, queue, shard, key_id, stamp)  # only now: invalid receipts must not evict stamps in use
        return shard, Claim(slot, sequence, epoch)

    def open_many(self, tenant: str, queue: int, shard: int, texts: Sequence[str]) -> list[tuple[int, int, int]] | None:
        """Open receipts of one shard at once: (slot, sequence, epoch) each. None: open them one by one."""
        stamp = self._stamps.get((tenant, queue, shard, self._newest))
        if stamp is None:
            return None
        head, state, recent = stamp
        try:
            return [*map(recent.pop, texts)]
        except KeyError:
            pass  # older, or not ours
        joined = "".join(texts)
        if len(joined) != TEXT_LENGTH * len(texts) or not joined.isascii():
            return None
        try:
            data = a2b_base64(joined.encode().translate(_FROM_URL_SAFE), strict_mode=True)
        except Base64Error:
            return None
        claims: list[tuple[int, int, int]] = []
        seals: list[bytes] = []
        given: list[bytes] = []
        for text, (start, body, sealed) in zip(texts, _PARTS.iter_unpack(data), strict=True):
            if len(text) != TEXT_LENGTH or start != head:
                return None
            slot, low, high = _BODY.unpack(body)
            claim = slot, low & _SEQUENCE_MAX, low >> 48 | high << 16
            seals.append(_seal(state, *claim))
            given.append(sealed)
            claims.append(claim)
        return claims if compare_digest(b"".join(seals), b"".join(given)) else None

    def _stamp(self, tenant: str, queue: int, shard: int, key_id: int) -> _Stamp:
        key = self._keys.get(key_id)
        if key is None:
            raise Unavailable("There is no receipt key yet. Retry.")
        head = _HEAD.pack(VERSION, key_id, shard, queue)
        name = tenant.encode()
        # The tenant's length comes first, so that no other tenant and head give the same bytes.
        state = blake2b(len(name).to_bytes(4, "little") + name + head, key=key, digest_size=SEALS * SEAL_BYTES)
        return _Stamp(head, state, {})

    def _keep(self, tenant: str, queue: int, shard: int, key_id: int, stamp: _Stamp) -> None:
        if len(self._stamps) >= STAMPS_MAX:
            self._stamps.clear()
        self._stamps[tenant, queue, shard, key_id] = stamp


def _in_a_row(numbers: Sequence[int], first: int) -> bool:
    following = range(first, first + len(numbers))
    return numbers == array("Q", following) if isinstance(numbers, array) else [*numbers] == [*following]


def _seal(state: blake2b, slot: int, sequence: int, epoch: int) -> bytes:
    block, at = divmod(sequence, SEALS)
    mac = state.copy()
    mac.update(_BLOCK.pack(block, (slot - sequence) & _LOW32, epoch))
    return mac.digest()[at * SEAL_BYTES : at * SEAL_BYTES + SEAL_BYTES]


def invalid(text: str) -> ReceiptInvalid:
    """The refusal of a receipt, in SQS's words. A long text is cut."""
    shown = text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"
    return ReceiptInvalid(f'The input receipt handle "{shown}" is not a valid receipt handle.')
