"""Drawings of a tree: each says what the nodes say, folds what does not fit, and lets no text break the format."""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import kvtrie as kv
from kvtrie import viz
from kvtrie.viz.outline import collect
from kvtrie.viz.palette import ink_for, tier_colour
from kvtrie.viz.scale import make_scale, ticks
from kvtrie.viz.words import clip, format_age, format_bytes, one_line, text_columns
from processes import run_command

SVG = "{http://www.w3.org/2000/svg}"
BYTES_PER_TOKEN = 1024


@dataclass
class FakeNode:
    """What `PrefixCache.nodes()` yields."""

    tokens: list[int]
    start: int
    end: int
    namespace: str
    tier: str = "device"
    age: float = 3.0
    user: bool = False
    pinned: int = 0
    live: int = 0
    children: list[FakeNode] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return BYTES_PER_TOKEN * len(self.tokens)


class FakeCache:
    """A tree made by hand: `add()` hangs an edge of `count` tokens below a node."""

    def __init__(self) -> None:
        self.all: list[FakeNode] = []
        self.next_token = 1

    def root(self, namespace: str = "default") -> FakeNode:
        self.all.append(FakeNode([], 0, 0, namespace, tier="none"))
        return self.all[-1]

    def add(self, parent: FakeNode, count: int, **values: Any) -> FakeNode:
        tokens = list(range(self.next_token, self.next_token + count))
        self.next_token += count
        node = FakeNode(tokens, parent.end, parent.end + count, parent.namespace, **values)
        parent.children.append(node)
        self.all.append(node)
        return node

    def nodes(self) -> list[FakeNode]:
        return self.all

    def stats(self) -> dict[str, Any]:
        cells = {"capacity_cells": 4096, "free_cells": 1024, "bytes": 4096 * BYTES_PER_TOKEN}
        return {"caches": [cells], "host_bytes": 1 << 20, "host_cap_bytes": 4 << 20, "reused_tokens": 4398}


@pytest.fixture
def shared() -> FakeCache:
    """Two conversations of 2200 tokens that share 1500; one is live, the other on the host; and a second namespace."""
    cache = FakeCache()
    prompt = cache.add(cache.root(), 1500, pinned=1, age=65.0)
    cache.add(prompt, 700, live=2, user=True)
    cache.add(prompt, 700, tier="host", age=7200.0)
    cache.add(cache.root("tenant b"), 40)
    return cache


def random_cache(count: int, seed: int) -> FakeCache:
    print(f"seed {seed}")
    rng = random.Random(seed)
    cache = FakeCache()
    places = [cache.root("a"), cache.root("b")]
    for _ in range(count):
        tier = rng.choice(["device", "host"])
        live = int(rng.random() < 0.02)
        places.append(cache.add(rng.choice(places), rng.randint(1, 400), tier=tier, live=live, age=rng.random() * 1e5))
    return cache


def bars(svg: str) -> list[ElementTree.Element]:
    rows = ElementTree.fromstring(svg).findall(f"{SVG}g")
    return [row.findall(f"{SVG}rect")[1] for row in rows]


def test_text_has_one_line_a_node_with_its_figures(shared: FakeCache) -> None:
    lines = viz.tree_text(shared).splitlines()
    assert lines[0] == "default: 3 nodes, 2900 tok, 2.83 MiB, 2 live"
    assert re.search(r"\[0,1500\) +1500 tok +1.46 MiB +device +1 min +\(2 branches, pinned\)$", lines[1])
    live = [line for line in lines if "live" in line][1]
    assert re.search(r"\[1500,2200\) +700 tok +700 KiB +device +3 s +\(user point, 2 live\)$", live)
    host = next(line for line in lines if "host" in line)
    assert re.search(r"700 tok +700 KiB +host +2 h$", host)
    assert lines[4] == "tenant b: 1 node, 40 tok, 40.0 KiB"
    assert len(lines) == 6


def test_text_draws_who_hangs_below_whom() -> None:
    cache = FakeCache()
    top = cache.add(cache.root(), 10)
    first = cache.add(top, 5)
    cache.add(first, 3)
    cache.add(first, 4)
    cache.add(top, 2)
    leads = [line.split("[")[0] for line in viz.tree_text(cache, ascii_only=True).splitlines()[1:]]
    assert leads == ["`- ", "   |- ", "   `- ", "      |- ", "      `- "]


def test_ascii_text_is_ascii_whatever_the_labels_hold(shared: FakeCache) -> None:
    text = viz.tree_text(shared, decode=lambda tokens: "gr\u00fc\u00dfe \u732b " * 9, ascii_only=True)
    assert text.isascii()
    assert '"gr' in text


def test_text_cuts_labels_to_the_width_and_never_figures(shared: FakeCache) -> None:
    text = viz.tree_text(shared, decode=lambda tokens: "word " * 40, width=90)
    assert max(text_columns(line) for line in text.splitlines()) <= 90
    narrow = viz.tree_text(shared, decode=lambda tokens: "word " * 40, width=20)
    assert "[0,1500)" in narrow and "word" not in narrow


def test_labels_cannot_smuggle_control_characters(shared: FakeCache) -> None:
    text = viz.tree_text(shared, decode=lambda tokens: "a\x1b[31mred\r\nb\x00\u202ec")
    assert all(character.isprintable() or character == "\n" for character in text)
    assert len(text.splitlines()) == 6


def test_decode_sees_the_beginning_of_an_edge_without_media_ids() -> None:
    cache = FakeCache()
    node = cache.add(cache.root(), 6)
    node.tokens = [5, -7, -8, 6, 7, 8]
    seen: list[list[int]] = []

    def decode(tokens: list[int]) -> str:
        seen.append(tokens)
        return "text"

    viz.tree_text(cache, decode)
    assert seen == [[5, 6, 7, 8]]


def test_svg_bars_are_proportional_and_children_begin_where_parents_end(shared: FakeCache) -> None:
    drawn = bars(viz.tree_svg(shared, decode=lambda tokens: "text"))
    left = [float(bar.get("x", "")) for bar in drawn]
    width = [float(bar.get("width", "")) for bar in drawn]
    assert width[0] / width[1] == pytest.approx(1500 / 700, rel=0.02)
    assert left[1] == left[2] == pytest.approx(left[0] + width[0], abs=4)
    assert {drawn[0].get("fill"), drawn[1].get("fill")} <= {tier_colour("device"), tier_colour("host")}
    assert sorted(bar.get("fill", "") for bar in drawn[1:3]) == sorted([tier_colour("device"), tier_colour("host")])


def test_svg_marks_live_pinned_and_shared(shared: FakeCache) -> None:
    svg = viz.tree_svg(shared)
    assert svg.count("<circle") == 3  # two live sessions, one in the legend
    for words in (
        "shared by 2",
        "live session",
        "pinned",
        "user point",
        "on the host",
        "tenant b",
        "4,440 without sharing",
    ):
        assert words in svg


def test_svg_escapes_text_and_stays_well_formed(shared: FakeCache) -> None:
    hostile = "</text><script>alert(1)</script> & \" ' ]]> \x0b\x00 \ufffe \ud800"
    shared.root("<b>&\x01").live = 1
    root = ElementTree.fromstring(viz.tree_svg(shared, decode=lambda tokens: hostile, title='"<title>&'))
    assert not list(root.iter(f"{SVG}script"))
    assert any("<script>" in (text.text or "") for text in root.iter(f"{SVG}text"))
    assert root.get("aria-label") == '"<title>&'


def test_svg_is_self_contained(shared: FakeCache) -> None:
    svg = viz.tree_svg(shared)
    assert not re.search(r"href|@import|url\(|<script|<image|<foreignObject", svg)


@pytest.mark.parametrize("count", [0, 1, 2, 59, 60, 61, 500])
def test_every_drawing_keeps_to_max_nodes_and_loses_no_token(count: int) -> None:
    cache = random_cache(count, seed=count)
    outline = collect(cache, max_nodes=60)
    rows = [row for section in outline.sections for row in section.rows]
    assert len(rows) <= 62
    assert sum(max(row.folded, 1) for row in rows) == count
    assert sum(row.token_count for row in rows) == sum(len(node.tokens) for node in cache.all)
    assert sum(row.live for row in rows) == sum(node.live for node in cache.all)
    if count <= 60:
        assert not any(row.folded for row in rows)
    ElementTree.fromstring(viz.tree_svg(cache))
    assert viz.tree_dot(cache).count("->") == len([r for s in collect(cache).sections for r in s.rows])


def test_folding_keeps_what_is_live() -> None:
    cache = FakeCache()
    prompt = cache.add(cache.root(), 100)
    for index in range(300):
        cache.add(prompt, 10, age=float(index), live=int(index == 299))
    rows = collect(cache, max_nodes=10).sections[0].rows
    assert len(rows) == 10
    assert sum(row.live for row in rows if not row.folded) == 1
    assert rows[-1].folded == 300 - 8


def test_a_chain_of_thousands_of_nodes_needs_no_recursion() -> None:
    cache = FakeCache()
    node = cache.root()
    for _ in range(5000):
        node = cache.add(node, 1)
    assert "(4981 more)" in viz.tree_text(cache, max_nodes=20)
    ElementTree.fromstring(viz.tree_svg(cache))


def test_children_may_be_indices(shared: FakeCache) -> None:
    expected = viz.tree_text(shared)
    for node in shared.all:
        node.children = [shared.all.index(child) for child in node.children]  # type: ignore[misc]
    assert viz.tree_text(shared) == expected


def test_a_real_cache_is_drawn_as_its_methods_say() -> None:
    cache = kv.PrefixCache(kv.caches.CausalCache([0], 1, 8, 64, dtype="float32"), host_bytes="1MiB", clock=lambda: 5.0)
    zeros = np.zeros((20, 1, 8), np.float32)
    for prompt in (list(range(20)), [*range(12), 50, 51]):
        with cache.begin(prompt) as session:
            for step in session.prefill():
                step.put(0, zeros[: len(step.tokens)], zeros[: len(step.tokens)])
    cache.page_out(list(range(20)))
    with cache.begin([*range(12), 50, 51], reuse_all=True):
        assert cache.tree(ascii_only=True).splitlines() == [
            "default: 3 nodes, 22 tok, 1.38 KiB, 1 live",
            "`- [0,12)      12 tok  768 B  device  0 s  (2 branches)",
            "   |- [12,20)   8 tok  512 B  host    0 s",
            "   `- [12,14)   2 tok  128 B  device  0 s  (1 live)",
        ]
        assert len(bars(cache.to_svg(decode=str))) == 3
        assert cache.to_dot().count("->") == 3
        assert "<svg" in cache._repr_html_()
    cache.close()
    assert "closed" in cache._repr_html_()


def test_an_empty_cache_can_be_drawn() -> None:
    cache = FakeCache()
    assert viz.tree_text(cache) == "(empty)"
    assert "Nothing is stored yet" in viz.tree_svg(cache)
    assert viz.tree_dot(cache).startswith("digraph")
    assert "<svg" in viz.tree_html(cache)


def test_bad_sizes_are_named(shared: FakeCache) -> None:
    with pytest.raises(ValueError, match="max_nodes: got 0"):
        viz.tree_text(shared, max_nodes=0)
    with pytest.raises(ValueError, match="width: got 100, allowed at least 640"):
        viz.tree_svg(shared, width=100)


def test_dot_quotes_text(shared: FakeCache) -> None:
    dot = viz.tree_dot(shared, decode=lambda tokens: 'say "hi" \\ back')
    assert 'say \\"hi\\" \\\\ back' in dot
    if shutil.which("dot"):
        run_command("dot", "-Tsvg", input=dot, check=True)


def test_html_has_the_drawing_and_the_counts(shared: FakeCache) -> None:
    html = viz.tree_html(shared)
    assert html.count("<svg") == 1
    assert "4,398 tokens reused" in html and "1,024 of 4,096 free" in html


def test_scale_is_linear_unless_a_long_run_hides_the_rest() -> None:
    plain = make_scale([(0, 1500), (1500, 2200)], 10.0, 440.0)
    assert not plain.breaks
    assert plain.at(1500) == pytest.approx(10 + 440 * 1500 / 2200)
    broken = make_scale([(0, 5000), *[(5000, 5020)] * 4], 0.0, 500.0)
    assert broken.breaks == ((0, 5000),)
    assert broken.at(5020) == pytest.approx(500)
    marks = [broken.at(offset) for offset in range(0, 5021, 10)]
    assert marks == sorted(marks)
    assert ticks(plain)[0] == 0 and ticks(plain)[-1] == 2200
    assert 5000 in ticks(broken)


def test_figures_for_people() -> None:
    wanted = {0: "0 B", 900: "900 B", 1536: "1.5 KiB", 1 << 20: "1 MiB", 824 << 10: "824 KiB", 5 << 40: "5 TiB"}
    assert {nbytes: format_bytes(nbytes) for nbytes in wanted} == wanted
    assert [format_age(age) for age in (-1, 3, 90, 5 * 3600, 3 * 86400)] == ["0 s", "3 s", "2 min", "5 h", "3 d"]
    assert clip("\u732b\u732b\u732b", 5) == "\u732b\u732b\u2026"
    assert clip("abc", 3) == "abc" and clip("abcd", 3) == "ab\u2026" and clip("a", 0) == ""
    assert one_line(" a\n\tb\x07 c ") == "a b c"
    assert ink_for("#ffffff") == "#1f2733" and ink_for("#000000") == "#ffffff"
