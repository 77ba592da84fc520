"""Receipts: what is sealed can be opened, by its own queue only, and nothing else can."""

from __future__ import annotations

import string
from array import array
from itertools import chain, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.catalog.entries import ReceiptKey
from batonq.core.commands import Claim, Leases
from batonq.errors import ReceiptInvalid, Unavailable
from batonq.node.messages.receipts import RECENT_MAX, STAMPS_MAX, TEXT_LENGTH, Receipts

TENANT = "000000000000"
KEYS = [ReceiptKey(1, b"a" * 32, 0), ReceiptKey(2, b"b" * 32, 0)]
URL_SAFE = set(string.ascii_letters + string.digits + "-_")

u32 = st.integers(0, 2**32 - 1)
u48 = st.integers(0, 2**48 - 1)
u16 = st.integers(0, 2**16 - 1)


CLAIM = Claim(7, 1_000, 3)


def leases(claims: list[tuple[int, int, int]]) -> Leases:
    slots, sequences, epochs = ([claim[at] for claim in claims] for at in range(3))
    return Leases(0, 0, slots, sequences, epochs=epochs)


@pytest.fixture
def receipts() -> Receipts:
    return Receipts(KEYS)


def seal(receipts: Receipts, tenant: str = TENANT, queue: int = 5, shard: int = 0) -> str:
    return receipts.seal_claims(tenant, queue, shard, [CLAIM])[0]


def claim_of(receipts: Receipts, tenant: str, queue: int, text: str) -> Claim:
    return receipts.open_at(tenant, queue, text)[1]


@given(tenant=st.text(max_size=20), queue=u32, shard=u16, claims=st.lists(st.tuples(u32, u48, u32), max_size=12))
def test_what_is_sealed_is_opened(tenant: str, queue: int, shard: int, claims: list[tuple[int, int, int]]) -> None:
    tenant = tenant.encode(errors="ignore").decode()
    receipts = Receipts(KEYS)
    texts = receipts.seal_claims(tenant, queue, shard, claims)
    assert len(texts) == len(claims)
    for text, claim in zip(texts, claims, strict=True):
        assert len(text) == TEXT_LENGTH
        assert set(text) <= URL_SAFE
        assert receipts.open_at(tenant, queue, text) == (shard, Claim(*claim))
        assert claim_of(receipts, tenant, queue, text) == Claim(*claim)
    assert Receipts(KEYS).seal_leases(tenant, queue, shard, leases(claims)) == texts
    middle = len(claims) // 2
    parts = [leases(claims[:middle]), leases(claims[middle:])]
    parts[0].join(parts[1:])
    assert [*chain.from_iterable(receipts.seal_leases(tenant, queue, shard, part) for part in parts)] == texts


@given(
    first_slot=st.integers(0, 2**31), first=st.integers(0, 2**47), count=st.integers(1, 100), hole=st.integers(1, 100)
)
def test_runs_of_first_leases_are_sealed_like_single_ones(first_slot: int, first: int, count: int, hole: int) -> None:
    """… and can be opened once without a look at the seal, then by the seal, at once or one by one."""
    receipts = Receipts(KEYS)
    slots = range(first_slot, first_slot + count)
    sequences = array("Q", [first + at + (at >= hole) for at in range(count)])
    claims = [*zip(slots, sequences, repeat(1))]
    texts = receipts.seal_first(TENANT, 5, 0, slots, sequences)
    assert texts == Receipts(KEYS).seal_claims(TENANT, 5, 0, claims)
    assert receipts.open_many(TENANT, 5, 0, texts) == claims
    assert receipts.open_many(TENANT, 5, 0, texts) == claims
    assert [claim_of(receipts, TENANT, 5, text) for text in texts] == claims


def test_receipts_that_do_not_come_back_are_forgotten_in_the_end(receipts: Receipts) -> None:
    for at in range(3 * RECENT_MAX // 1_000):
        receipts.seal_first(TENANT, 5, 0, range(1_000), array("Q", range(at * 1_000, at * 1_000 + 1_000)))
        assert sum(len(stamp.recent) for stamp in receipts._stamps.values()) <= RECENT_MAX + 1_000


def test_every_lease_has_its_own_receipt(receipts: Receipts) -> None:
    claims = [CLAIM._replace(epoch=1), CLAIM._replace(epoch=2), CLAIM._replace(slot=8), CLAIM._replace(sequence=1_001)]
    assert len(set(receipts.seal_claims(TENANT, 5, 0, claims))) == 4


def test_another_queue_generation_tenant_or_key_refuses_it(receipts: Receipts) -> None:
    text = seal(receipts)
    for opener, tenant, queue in (
        (receipts, TENANT, 6),  # another queue, or the same name created again
        (receipts, "111111111111", 5),
        (Receipts([ReceiptKey(2, b"c" * 32, 0)]), TENANT, 5),
        (Receipts([ReceiptKey(3, b"b" * 32, 0)]), TENANT, 5),
        (Receipts(), TENANT, 5),
    ):
        with pytest.raises(ReceiptInvalid):
            claim_of(opener, tenant, queue, text)
    assert claim_of(receipts, TENANT, 5, text) == Claim(7, 1_000, 3)


@pytest.mark.parametrize("at", range(TEXT_LENGTH))
def test_no_character_can_be_changed(receipts: Receipts, at: int) -> None:
    text = seal(receipts)
    for char in sorted(URL_SAFE | set("+/=! \n") - {text[at]}):
        if char != text[at]:
            with pytest.raises(ReceiptInvalid):
                claim_of(receipts, TENANT, 5, text[:at] + char + text[at + 1 :])


@given(st.text(max_size=60) | st.text(sorted(URL_SAFE), min_size=TEXT_LENGTH, max_size=TEXT_LENGTH))
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(ReceiptInvalid) as refusal:
        claim_of(Receipts(KEYS), TENANT, 5, text)
    assert refusal.value.message == f'The input receipt handle "{text}" is not a valid receipt handle.'


def test_a_long_text_is_not_repeated_in_full(receipts: Receipts) -> None:
    with pytest.raises(ReceiptInvalid) as refusal:
        claim_of(receipts, TENANT, 5, "x" * 100_000)
    assert len(refusal.value.message) < 300


def test_a_new_key_seals_and_the_old_one_still_opens(receipts: Receipts) -> None:
    rotating = Receipts(KEYS[:1])
    old = seal(rotating)
    rotating.set_keys(KEYS)
    new = seal(rotating)
    assert new != old
    assert claim_of(rotating, TENANT, 5, old) == claim_of(rotating, TENANT, 5, new)
    rotating.set_keys(KEYS[1:])
    assert claim_of(rotating, TENANT, 5, new)
    with pytest.raises(ReceiptInvalid):
        claim_of(rotating, TENANT, 5, old)


def test_without_a_key_nothing_is_sealed() -> None:
    with pytest.raises(Unavailable):
        seal(Receipts())


def test_what_is_remembered_is_bounded(receipts: Receipts) -> None:
    texts = [seal(receipts, queue=queue) for queue in range(STAMPS_MAX + 10)]
    assert len(receipts._stamps) <= STAMPS_MAX
    assert all(claim_of(receipts, TENANT, queue, text) for queue, text in enumerate(texts))
    assert len(receipts._stamps) <= STAMPS_MAX


def test_garbage_does_not_drive_out_what_is_in_use(receipts: Receipts) -> None:
    text = seal(receipts)
    forged = Receipts([ReceiptKey(2, b"x" * 32, 0)])
    for shard in range(50):
        with pytest.raises(ReceiptInvalid):
            claim_of(receipts, TENANT, 5, seal(forged, shard=shard))
    assert len(receipts._stamps) == 1
    assert claim_of(receipts, TENANT, 5, text)
