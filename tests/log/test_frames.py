"""The frame codec."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.records import FORMAT_VERSION, ROW_BYTES
from batonq.errors import LogCorrupt
from batonq.log import frames
from batonq.log.frames import HEADER_BYTES, NO_DIGEST, Frame, FrameCutOff, FrameUnreadable, parse, parse_header
from tests.support.logs import make_frame

u64 = st.integers(0, 2**64 - 1)


def stored(frame: Frame) -> bytes:
    return frame.header + frame.rows + frame.variable


@given(
    cluster=u64,
    region=st.integers(0, 65535),
    shard=st.integers(0, 65535),
    epoch=u64,
    number=u64,
    time_ms=u64,
    previous=st.binary(min_size=16, max_size=16),
    rows=st.binary(min_size=ROW_BYTES, max_size=ROW_BYTES),
    count=st.integers(1, 40),
    variable=st.binary(max_size=500),
    before=st.binary(max_size=100),
)
def test_a_frame_comes_back_as_it_was_built(
    cluster: int,
    region: int,
    shard: int,
    epoch: int,
    number: int,
    time_ms: int,
    previous: bytes,
    rows: bytes,
    count: int,
    variable: bytes,
    before: bytes,
) -> None:
    frame = frames.build(
        cluster=cluster,
        region=region,
        shard=shard,
        epoch=epoch,
        number=number,
        time_ms=time_ms,
        previous_digest=previous,
        rows=rows * count,
        variable=variable,
    )
    data = before + stored(frame) + b"what follows"
    assert parse(data, len(before)) == frame
    header = parse_header(frame.header)
    assert (header.number, header.epoch, header.row_count) == (number, epoch, count)
    assert header.frame_bytes == frame.size == len(stored(frame))
    assert frame.row_count == count


def test_the_layout_is_as_documented() -> None:
    """Spelled out byte by byte: old logs must stay readable."""
    frame = make_frame(
        7, bytes(range(16)), shard=0xFFFF, epoch=3, variable=b"body", time_ms=1_700_000_000_123, cluster=9
    )
    content = frame.rows + frame.variable
    expected = (
        b"BTNF"
        + FORMAT_VERSION.to_bytes(2, "little")
        + bytes(2)
        + (9).to_bytes(8, "little")
        + (0xFFFF).to_bytes(4, "little")
        + (1).to_bytes(4, "little")
        + (3).to_bytes(8, "little")
        + (7).to_bytes(8, "little")
        + (1_700_000_000_123).to_bytes(8, "little")
        + bytes(range(16))
        + (4).to_bytes(8, "little")
        + google_crc32c.value(content).to_bytes(4, "little")
    )
    assert frame.header == expected + google_crc32c.value(expected).to_bytes(4, "little")
    assert frame.digest.hex() == "8292fd1981f73ced8e4e136ccf53ebaf"


def test_words_are_the_rows() -> None:
    frame = make_frame(5, NO_DIGEST, count=3)
    words = frame.words()
    assert len(words) == 24
    assert list(words[1::8]) == [5, 6, 7]
    assert words.tobytes() == frame.rows


def test_every_flipped_bit_is_seen() -> None:
    sound = stored(make_frame(7, NO_DIGEST, variable=b"the body of a message"))
    for at in range(len(sound)):
        for bit in range(8):
            damaged = bytearray(sound)
            damaged[at] ^= 1 << bit
            with pytest.raises(LogCorrupt):
                parse(bytes(damaged))


def test_every_cut_is_seen_and_says_how_much_is_needed() -> None:
    frame = make_frame(7, NO_DIGEST, variable=b"the body of a message")
    sound = stored(frame)
    for length in range(len(sound)):
        with pytest.raises(FrameCutOff, match=f"truncated after {length} of") as caught:
            parse(sound[:length])
        assert caught.value.needed == (HEADER_BYTES if length < HEADER_BYTES else len(sound))
        assert caught.value.number == (None if length < HEADER_BYTES else 7)


def with_header(frame: Frame, at: int, value: int, size: int) -> bytes:
    """The frame with one header field changed and the header's checksum put right."""
    head = bytearray(frame.header[:76])
    head[at : at + size] = value.to_bytes(size, "little")
    crc: int = google_crc32c.value(bytes(head))
    return bytes(head) + crc.to_bytes(4, "little") + frame.rows + frame.variable


def test_a_newer_format_is_not_taken_for_damage() -> None:
    newer = with_header(make_frame(7, NO_DIGEST), 4, FORMAT_VERSION + 1, 2)
    for read in (parse, parse_header):
        refusal = f"format version {FORMAT_VERSION + 1}, this Baton reads up to {FORMAT_VERSION}: use a newer release"
        with pytest.raises(LogCorrupt, match=refusal) as caught:
            read(newer)
        assert not isinstance(caught.value, FrameUnreadable)


def test_the_format_before_is_read() -> None:
    frame = make_frame(7, NO_DIGEST)
    older = parse(with_header(frame, 4, 1, 2))
    assert older.version == 1
    assert (older.rows, older.variable) == (frame.rows, frame.variable)


@pytest.mark.parametrize(("at", "value", "size"), [(20, 0, 4), (20, 70_000, 4), (64, 1 << 40, 8)])
def test_lengths_over_the_limits_are_refused_before_anything_is_read(at: int, value: int, size: int) -> None:
    with pytest.raises(LogCorrupt, match="over the limits"):
        parse(with_header(make_frame(7, NO_DIGEST), at, value, size))
