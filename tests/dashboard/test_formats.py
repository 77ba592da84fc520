"""Numbers with units, times, sparklines, and bodies that must not become markup."""

from __future__ import annotations

from time import process_time

import pytest

from batonq.api.ui import formats


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (1204, "1,204"), (1_000_000, "1,000,000"), (0.44, "0.4"), (12.0, "12"), (0.001, "0.001"), (None, "–")],
)
def test_numbers(value: float | None, shown: str) -> None:
    assert formats.number(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"), [(0, "0/s"), (0.4, "0.4/s"), (1204.4, "1,204/s"), (0.003, "0.003/s"), (None, "–")]
)
def test_rates(value: float | None, shown: str) -> None:
    assert formats.rate(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 s"), (0.21, "0.2 s"), (45, "45 s"), (240, "4 min"), (90, "1.5 min"), (7200, "2 h"), (172_800, "2 d")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert formats.duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0 B"), (812, "812 B"), (1536, "1.5 KiB"), (5 << 50, "5,120 TiB")])
def test_sizes(count: int, shown: str) -> None:
    assert formats.size(count) == shown


@pytest.mark.parametrize(("share", "shown"), [(0, "0 %"), (0.0044, "0.4 %"), (0.5, "50 %"), (0.0001, "< 0.1 %")])
def test_shares(share: float, shown: str) -> None:
    assert formats.percent(share) == shown


def test_times_are_relative_with_the_exact_time_beside_them() -> None:
    shown = formats.when(1_790_000_000_123, 1_790_000_012_500)
    assert shown == ('<time datetime="2026-09-21T14:13:20.123Z" title="2026-09-21 14:13:20.123 UTC">12 s ago</time>')
    assert formats.distance(1_000_000, 982_000) == "in 18 s"
    assert formats.distance(1_000_000, 1_000_100) == "now"
    assert formats.distance(0, 310_000) == "5 min ago"
    assert formats.when(None, 0) == "–"
    assert formats.exact(10**20) == "–"


def test_a_sparkline_is_zero_based_and_keeps_gaps() -> None:
    shown = formats.spark([0, 10, None, 5, 10])
    assert shown.count("<polyline") == 2
    assert 'points="0.0,19.0 20.0,1.0"' in shown
    assert formats.spark([]) == formats.spark(None) == '<span class="soft">–</span>'


def test_a_flat_zero_is_a_line_at_the_bottom() -> None:
    assert 'points="0.0,19.0 80.0,19.0"' in formats.spark([0, 0])


HOSTILE = '</script><img src=x onerror="alert(1)">'


@pytest.mark.parametrize(
    "value",
    [HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE], {"a": {"b": [{HOSTILE: [HOSTILE]}]}}, f'{{"a": "{HOSTILE[2:10]}"}}'],
)
def test_a_body_never_becomes_markup(value: object) -> None:
    shown = formats.json_tree(value)
    assert "<img" not in shown and "<script" not in shown and "</script" not in shown


def test_a_json_text_is_shown_as_a_tree() -> None:
    shown = formats.json_tree('{"order": 7, "lines": [1, 2], "note": null, "empty": {}, "none": []}')
    assert '<span class="key">order</span>: <span class="literal">7</span>' in shown
    assert "[ 2 items ]" in shown and "null" in shown and "{}" in shown and "[]" in shown


def test_a_large_or_deep_value_is_shown_as_text() -> None:
    assert formats.json_tree([*range(formats.JSON_NODES_MAX + 1)]).startswith("<pre")
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    assert formats.json_tree(deep).startswith("<pre")
    assert formats.json_tree("[" * 100_000).startswith("<pre")


def test_a_body_on_one_line() -> None:
    assert formats.compact({"a": "b\n  c"}) == '{"a": "b\\n c"}'
    assert formats.compact("x" * 500) == "x" * 119 + "…"


def test_parts_of_a_sentence_are_links() -> None:
    links = {"b has 1 <dead> letter": "/b", "ab has 1 <dead> letter": '/a"b'}
    shown = formats.linked("2 need you: ab has 1 <dead> letter; b has 1 <dead> letter.", links)
    assert shown == (
        '2 need you: <a href="/a&#34;b">ab has 1 &lt;dead&gt; letter</a>; <a href="/b">b has 1 &lt;dead&gt; letter</a>.'
    )
    assert formats.linked("<b>", {}) == "&lt;b&gt;"


@pytest.mark.parametrize(
    "value",
    [
        "[" + "0," * 120_000 + "0]",
        [0] * 120_000,
        [{"a": 1}] * 60_000,
        "[" * 900 + "]" * 900,
        {str(number): [] for number in range(50_000)},
    ],
    ids=["text", "list", "objects", "deep", "fields"],
)
def test_a_hostile_body_is_shown_soon(value: object) -> None:
    """One body must not delay the requests of others; a page shows up to 100 of them."""
    began_s = process_time()
    for _ in range(5):
        formats.json_tree(value)
        formats.raw(value)
        formats.compact(value)
    assert process_time() - began_s < 0.5


def test_a_long_body_is_cut() -> None:
    assert formats.raw({"a": [1]}) == '{\n  "a": [\n    1\n  ]\n}'
    assert formats.raw([0] * 100, 20) == "[0,0,0,0,0,0,0,0,0,0" + "…"
    assert formats.json_tree([1, 2, 3], 3).startswith("<pre") and formats.json_tree([1, 2], 3).startswith("<div")
    assert "<code>xxxxx…</code>" in formats.json_tree("x" * 10, text_max=5)
