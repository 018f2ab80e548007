"""``PrefixCache.explain``: the nearest branch, the first token that differs, what stops where, what would mend it."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import A, B, CodingModel, compute, make_cache
from kinds_fakes import KINDS, diverging, image, make, words

ROOT = Path(__file__).resolve().parents[2]


def computed(cache: Any, model: Any, tokens: Any, **options: Any) -> None:
    with cache.begin(tokens, **options) as session:
        compute(session, model)


def spelled(tokens: list[int]) -> str:
    return "".join(f"<{token}>" for token in tokens)


def test_nothing_is_known() -> None:
    cache = make_cache()
    found = cache.explain([1, 2, 3])
    assert (found.end, found.matched, found.reusable, found.computed) == ("unknown", 0, 0, 3)
    assert (found.branches, list(found.known), found.rejoin.tokens, found.advice()) == (0, [], 0, [])
    assert "nothing is known in namespace 'default'" in str(found)


def test_it_names_the_first_token_that_differs_and_the_text_around() -> None:
    cache = make_cache()
    computed(cache, CodingModel(), A)
    found = cache.explain(B, decode=spelled)
    assert (found.end, found.matched, found.branches) == ("differs", 30, 1)
    assert list(found.before) == A[18:30]
    assert list(found.instead) == B[30:]
    assert list(found.known) == A[30:]
    assert found.rejoin.tokens == 0
    text = str(found)
    for piece in ("30 of 40 prompt tokens are known, 30 can be reused from the device", "10 to compute", "at token 30"):
        assert piece in text
    lines = text.splitlines()
    assert lines[-3].endswith(repr(spelled(A[18:30])))
    assert spelled(B[30:]) in lines[-2]
    assert spelled(A[30:]) in lines[-1]
    assert "21 22 23" in found.text(lambda tokens: " ".join(map(str, tokens)))


def test_a_line_that_changes_is_recognised() -> None:
    """What most costs users their cache: a date near the beginning. It says how much is the same behind it."""
    cache = make_cache(capacity=512)
    before, behind = list(range(200, 230)), list(range(300, 400))
    computed(cache, CodingModel(), [*before, 1, 2, 3, *behind])
    found = cache.explain([*before, 7, 8, *behind, 5])
    assert found.rejoin == (2, 3, 100)
    (advice,) = found.advice()
    assert "2 of the prompt's tokens and 3 of the tree's differ there, the next 100 are the same" in advice
    assert "to reuse more: only 2 of" in str(found)


def test_the_match_ends_where_others_ended() -> None:
    cache = make_cache()
    computed(cache, CodingModel(), A)
    found = cache.explain([*A, 1, 2])
    assert (found.end, found.matched, found.reusable, found.branches, list(found.known)) == ("tree_ends", 40, 40, 0, [])
    found = cache.explain(A)
    assert (found.end, found.matched, found.reusable, found.reason.code) == ("whole_known", 40, 39, "last_token")
    found = cache.explain(A[:20])
    assert (found.end, found.matched) == ("whole_known", 20)


def test_other_namespaces_are_not_looked_at() -> None:
    """Not even to say that there is something."""
    cache = make_cache()
    computed(cache, CodingModel(), A)
    elsewhere = cache.explain(A, "other")
    fresh = make_cache().explain(A, "other")
    assert str(elsewhere) == str(fresh)
    assert (elsewhere.end, elsewhere.branches) == ("unknown", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_says_how_far_it_could_go(kind: str) -> None:
    cache, model = make(kind, spacing=256)
    text = words(1, 1500)
    computed(cache, model, text)
    asked = diverging(text, 1300, 5, 1500)
    found = cache.explain(asked)
    reaches = {reach.kind: reach for reach in found.caches}
    kinds = {"dense": {"full"}, "latent": {"full"}, "hybrid": {"full", "states"}}
    assert set(reaches) == kinds.get(kind, {"full", kind})
    assert reaches["full"].deepest == found.matched == 1300
    if kind == "hybrid":
        assert (reaches["states"].deepest, found.reusable, found.reason.code) == (1280, 1280, "no_state")
        assert reaches["states"].kept == (256, 512, 768, 1024, 1280)
        assert "kept at 256, 512, 768, 1,024, 1,280" in str(found)
        assert "session.checkpoint()" in found.advice()[-1]
    else:
        assert found.reusable == 1300
        assert "by itself" not in str(found)
    with cache.begin(asked) as session:
        assert (session.matched, session.reused, session.reason) == (found.matched, found.reusable, found.reason)
    assert cache.check() == []


def test_a_window_whose_cells_are_gone() -> None:
    cache, model = make("window", window_capacity=900, window=512)
    text = words(2, 1500)
    with cache.begin(text) as session:
        compute(session, model, chunk=128)
    found = cache.explain(diverging(text, 600, 3, 700))
    window = found.caches[1]
    assert (window.kind, window.window, window.name) == ("window", 512, "window 512")
    assert found.matched == 600
    assert found.reason.code == "window_incomplete"
    assert window.deepest == found.reusable < 600
    assert "larger window_capacity" in found.advice()[-1]


def test_what_is_in_a_lower_tier() -> None:
    cache = make_cache(host_bytes="1MiB")
    computed(cache, CodingModel(), A)
    cache.page_out(A)
    found = cache.explain([*A, 1])
    assert (found.tier, found.reusable) == ("host", 40)
    assert found.bytes_moved == cache.plan([*A, 1]).bytes_moved > 0
    assert f"{found.bytes_moved:,} bytes to load" in str(found)


def test_seconds_are_those_that_were_measured() -> None:
    now = [0.0]
    cache = make_cache(capacity=4096, clock=lambda: now[0])
    model = CodingModel(check=False)
    assert cache.explain([1]).compute_seconds is None
    for turn in range(20):
        with cache.begin(list(range(turn * 1000, turn * 1000 + 100))) as session:
            for step in session.prefill(chunk=100):
                now[0] += 1.0
                model(step)
    found = cache.explain(list(range(50_000, 50_200)))
    assert found.compute_seconds == pytest.approx(2.0, rel=0.05)
    assert "200 to compute, about 2,0" in str(found)


def test_images_and_spans() -> None:
    cache, model = make("dense")
    picture, other = image("a", 12), image("b", 12)
    prompt = [*words(3, 40), *picture, *words(4, 20)]
    computed(cache, model, prompt)
    found = cache.explain([*words(3, 40), *other, *words(4, 20)], decode=lambda tokens: f"{len(tokens)} tokens")
    assert (found.matched, found.rejoin) == (40, (12, 12, 20))
    assert "'<media>'" in str(found)
    assert cache.explain(prompt, atomic=[(55, 60)]).matched == 55


@pytest.mark.parametrize("tokens", [[], [-7], None, [1.5]])
def test_it_refuses_what_plan_refuses(tokens: Any) -> None:
    cache = make_cache()
    with pytest.raises(kv.Error) as refused:
        cache.explain(tokens)
    with pytest.raises(type(refused.value)) as planned:
        cache.plan(tokens)
    assert str(refused.value) == str(planned.value).replace("[plan]", "[explain]")
    cache.close()
    with pytest.raises(kv.errors.ClosedError):
        cache.explain([1])


def test_the_picture() -> None:
    cache, model = make("hybrid", spacing=256)
    text = words(1, 1500)
    computed(cache, model, text)
    found = cache.explain(diverging(text, 1300, 5, 1500))
    svg = ElementTree.fromstring(found.to_svg())
    shown = [each.text for each in svg.iter() if each.tag.endswith("text")]
    assert "1,280 of 1,500 tokens can be reused, 220 are computed" in shown
    assert {"prompt", "full", "states", "1,300", "1,280", "new"} <= set(shown)
    bars = [float(each.get("width", 0)) for each in svg.iter() if each.tag.endswith("rect")][1:]
    full, states = bars[3], bars[4]
    assert 0 < states < full  # the axis may be shortened
    html = found._repr_html_()
    assert html.startswith('<div class="kvtrie"><svg')
    assert "it differs from the one branch at token 1,300" in html
    with pytest.raises(ValueError, match="got 100, allowed at least 640"):
        found.to_svg(width=100)


def test_text_of_a_prompt_is_escaped_in_html() -> None:
    cache = make_cache()
    computed(cache, CodingModel(), A)
    assert "<script>" not in cache.explain(B, decode=lambda _: "<script>")._repr_html_()


def test_random_prompts_agree_with_plan_and_begin() -> None:
    """What it says is what ``begin`` then does, over conversations that branch."""
    random = np.random.default_rng(1601)
    cache, model = make("hybrid", spacing=64)
    known: list[list[int]] = []
    ends = set()
    for turn in range(60):
        prompt = words(turn, 40)
        if known:
            base = known[int(random.integers(len(known)))]
            prompt = [*base[: int(random.integers(1, len(base) + 1))], *words(turn, int(random.integers(0, 30)))]
        found = cache.explain(prompt)
        ends.add(found.end)
        with cache.begin(prompt) as session:
            assert (session.matched, session.reused, session.reason) == (found.matched, found.reusable, found.reason)
            compute(session, model)
        known.append(prompt)
    assert ends == {"unknown", "differs", "tree_ends", "whole_known"}
