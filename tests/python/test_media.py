"""Images in prompts, and other spans that go as one: never matched, split, captured, stepped or rewound inside.

Rows of such a span carry a code of all of it (kinds_fakes.py), and the model refuses steps that cut one, so half a span
shows whatever the counts say.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from fakes import compute, run, state_of
from kinds_fakes import History, KindsModel, image, make, points_of, words

pytestmark = pytest.mark.usefixtures("nothing_left_over")

KINDS = ("dense", "window", "chunk", "hybrid", "all")
SMALL: dict[str, Any] = {"capacity": 512, "window": 16, "chunk": 16, "spacing": 16}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def borders(cache: Any) -> set[int]:
    return {border for node in cache.nodes() for border in (node.start, node.end)}


# ---- ids -------------------------------------------------------------------------------------------------------------


def test_ids_stand_for_content_and_count() -> None:
    digest = hashlib.sha256(b"pixels").digest()
    ids = kv.media(digest, 5)
    assert ids.dtype == np.int32
    assert ids.shape == (5,)
    assert (ids == ids[0]).all()
    assert ids[0] < 0
    np.testing.assert_array_equal(kv.media(digest, 5), ids)
    assert kv.media(digest, 4)[0] != ids[0]
    assert kv.media(hashlib.sha256(b"others").digest(), 5)[0] != ids[0]
    assert kv.media(b"text", 3)[0] == kv.media("text", 3)[0]
    assert len({int(kv.media(f"item {index}", 2)[0]) for index in range(1000)}) == 1000
    assert kv.media(b"a\0b", 1)[0] != kv.media(b"a\0c", 1)[0]


@pytest.mark.parametrize(
    ("digest", "count", "error"),
    [
        (b"", 3, ValueError),
        ("", 3, ValueError),
        (b"x", 0, ValueError),
        (b"x", -1, ValueError),
        (b"x", 2**31, ValueError),
        (7, 3, TypeError),
        (None, 3, TypeError),
        (b"x", 2.5, TypeError),
        (b"x", "3", TypeError),
        (b"x", None, TypeError),
    ],
)
def test_wrong_arguments(digest: Any, count: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\[media\]"):
        kv.media(digest, count)


def test_what_is_no_whole_item_is_refused() -> None:
    cache, model = make("hybrid", **SMALL)
    picture = image("torn", 6)
    unknown = -(2**31)
    run(cache, [1, 2, 3], model)
    before = state_of(cache)
    for wrong, text in (
        ([1, *picture[:5], 2], "media item at index 1: got 5 of its tokens, allowed 6"),
        ([1, 2, *picture, *picture[:1]], "index 8: got 1"),
        ([unknown, 5], r"tokens\[0\]: got -2147483648"),
    ):
        for call in (cache.begin, cache.plan):
            with pytest.raises(kv.errors.ArgumentError, match=text):
                call(wrong)
    assert state_of(cache) == before
    with cache.begin([1, 2, 3]) as session:
        with pytest.raises(kv.errors.ArgumentError, match="got 4 of its tokens"):
            session.append(picture[:4])
        with pytest.raises(kv.errors.ArgumentError, match=r"tokens\[1\]"):
            session.append([4, unknown])
        assert session.recorded == 3
        session.append(picture)
        assert session.recorded == 9
        compute(session, model)
    assert cache.check() == []


@pytest.mark.parametrize("spans", [[(3, 3)], [(5, 4)], [(-1, 4)], [(0, 21)], [(20, 21)]])
def test_spans_outside_the_prompt_are_refused(spans: Any) -> None:
    cache, _ = make("dense", 64)
    with pytest.raises(kv.errors.ArgumentError, match="atomic"):
        cache.begin(words(1, 20), atomic=spans)
    assert cache.stats()["sessions"] == 0


@pytest.mark.parametrize("spans", [5, "ab", [(1,)], [(1, 2, 3)], [("a", "b")], [(1.5, 3)], [3]])
def test_spans_of_wrong_types_are_refused(spans: Any) -> None:
    cache, _ = make("dense", 64)
    with pytest.raises((kv.errors.ArgumentTypeError, kv.errors.ArgumentError), match="atomic"):
        cache.begin(words(1, 20), atomic=spans)
    assert cache.stats()["sessions"] == 0


# ---- reuse -----------------------------------------------------------------------------------------------------------


def test_prompts_with_different_images_share_up_to_the_image(kind: str) -> None:
    """Equal words and equal placeholders, other pixels."""
    cache, model = make(kind, **SMALL)
    before, after = words(1, 40), words(2, 20)
    cats, dogs = image("cats", 12), image("dogs", 12)
    reused = [run(cache, [*before, *picture, *after], model).reused for picture in (cats, dogs, cats, dogs)]
    assert reused[0] == 0
    assert reused[1] == (32 if kind in ("hybrid", "all") else 40)
    assert reused[2:] == [71, 71]
    assert run(cache, [*before, *image("birds", 12), *after], model).reused == 40
    assert not borders(cache) & set(range(41, 52))
    assert cache.check() == []


def test_the_same_image_with_another_count_is_another_image(kind: str) -> None:
    """A key is (digest, count): 8 of 12 equal placeholders are no match."""
    cache, model = make(kind, **SMALL)
    before, after = words(1, 20), words(2, 20)
    run(cache, [*before, *image("same", 12), *after], model)
    other = [*before, *image("same", 8), *after]
    assert cache.plan(other).matched == 20
    session = run(cache, other, model)
    assert session.matched == 20
    assert session.reused <= 20
    assert run(cache, [*before, *image("same", 12), *after], model).reused == 51
    assert cache.check() == []


def test_two_images_in_a_row_and_two_equal_ones(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    one, two = image("one", 10), image("two", 10)
    run(cache, [*one, *two, 1, 2, 3], model)
    assert run(cache, [*one, *one, 1, 2, 3], model).matched == 10
    session = run(cache, [*one, *two, 1, 2, 4], model)
    assert (session.matched, session.reused) == (22, 22)
    assert run(cache, [*one, *two, 1, 5, 4], model).reused == (10 if kind in ("hybrid", "all") else 21)
    session = run(cache, [*one, *one, *one], model)
    assert session.matched == 20
    assert not borders(cache) & {*range(1, 10), *range(11, 20), *range(24, 30)}
    assert cache.check() == []


def test_a_prompt_that_ends_with_an_image_computes_all_of_it_again(kind: str) -> None:
    """One token has to be left; the last one alone is no step."""
    cache, model = make(kind, **SMALL)
    prompt = [*words(1, 30), *image("last", 12)]
    run(cache, prompt, model)
    for _ in range(2):
        plan = cache.plan(prompt)
        session = run(cache, prompt, model)
        assert (session.matched, plan.matched) == (42, 42)
        assert session.reused == plan.reusable
        assert session.reason.code == plan.reason.code
        assert session.reused <= 30
    if kind not in ("hybrid", "all"):
        assert (session.reused, session.reason.code) == (30, "atomic_span")
    else:
        assert session.reused >= 16
    assert run(cache, prompt, model, reuse_all=True).reused == 42
    assert cache.check() == []


def test_spans_named_by_the_caller(kind: str) -> None:
    """A prompt that parts from a known one inside a span reuses nothing of the span."""
    cache, model = make(kind, spans=[(20, 40)], **SMALL)
    a = words(1, 60)
    b = [*a[:30], 96 - a[30], *words(2, 29)]
    run(cache, a, model, atomic=[(20, 40)])
    session = run(cache, b, model, atomic=[(20, 40)])
    whole = kind in ("hybrid", "all")
    assert (session.matched, session.reused) == (20, 16 if whole else 20)
    assert session.reason.code == ("no_state" if whole else "none")
    assert run(cache, a, model, atomic=[(20, 40)]).reused == 59
    assert run(cache, b, model, atomic=[(20, 40)]).reused == 59
    assert cache.check() == []


def test_a_stray_minus_one_is_no_item() -> None:
    """Ids are far from the numbers that programs use for "none", whatever items there are."""
    assert int(kv.media("any", 1)[0]) < -(2**30)
    cache, _ = make("dense", **SMALL)
    with pytest.raises(kv.errors.ArgumentError, match=r"tokens\[1\]: got -1"):
        cache.begin([1, -1])


def test_tokens_with_and_without_a_span_are_different() -> None:
    """K and V of the span's tokens depend on all of it, so a prompt without it has others."""
    cache, model = make("dense", spans=[(20, 40)], **SMALL)
    text = words(1, 60)
    session = run(cache, text, model, atomic=[(20, 40)])
    assert session.reused == 0
    assert (cache.plan(text).matched, cache.plan(text, atomic=[(20, 40)]).matched) == (20, 60)
    with cache.begin(text, atomic=[(20, 40)], reuse_all=True) as again:
        assert again.tokens.tolist() == text
    assert cache.pin(text, atomic=[(20, 40)]) == 60
    assert cache.unpin(text, atomic=[(20, 40)]) == 60
    assert cache.evict(text) == 0
    assert cache.evict(text, atomic=[(20, 40)]) > 0
    assert cache.check() == []


def test_spans_that_overlap_are_one(kind: str) -> None:
    cache, model = make(kind, spans=[(10, 34)], **SMALL)
    text = words(1, 60)
    with cache.begin(text, atomic=[(20, 34), (10, 21)]) as session:
        lengths = []
        for step in session.prefill(chunk=15):
            model(step)
            lengths.append(session.length)
        assert lengths == [10, 34, 49, 60]
        assert not any(session.can_rewind(length) for length in range(11, 34))
        assert all(session.can_rewind(length) for length in (0, 60))
    assert cache.check() == []


# ---- steps, captures, rewinds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [5, 21, *(pytest.param(each, marks=pytest.mark.ci) for each in (1, 16, 64))])
def test_steps_end_at_borders(kind: str, chunk: int) -> None:
    """A span longer than a chunk is one step; none begins or ends inside, and no state is taken there."""
    cache, model = make(kind, **{**SMALL, "spacing": 4})
    prompt = [*words(1, 13), *image("wide", 20), *words(2, 10), *image("small", 3), *words(3, 4)]
    spans = [(13, 33), (43, 46)]
    with cache.begin(prompt) as session:
        ends = [0]
        for step in session.prefill(chunk=chunk):
            model(step)  # refuses a step that cuts a span
            ends.append(session.length)
    assert ends[-1] == 50
    for begin, end in spans:
        assert not set(range(begin + 1, end)) & {*ends, *points_of(cache), *model.captured, *borders(cache)}
    allowed = max(chunk, 20) if chunk <= 20 else chunk
    assert max(np.diff(ends)) <= allowed
    assert cache.check() == []


def test_a_span_of_a_batch(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    prompts = [[*words(1, 5), *image("left", 9), 1], [*words(2, 9), *image("right", 30), 2]]
    sessions = [cache.begin(prompt) for prompt in prompts]
    lengths = []
    while any(len(session.remaining) for session in sessions):
        model(cache.batch([session for session in sessions if len(session.remaining)], chunk=8))
        lengths.append([session.length for session in sessions])
    assert lengths == [[5, 8], [14, 9], [15, 39], [15, 40]]
    for session in sessions:
        session.close()
    assert cache.check() == []


def test_rewinding_into_a_span_is_refused(kind: str) -> None:
    cache, model = make(kind, **SMALL)
    prompt = [*words(1, 20), *image("view", 10), *words(2, 5)]
    with cache.begin(prompt) as session:
        compute(session, model)
        for length in (21, 25, 29):
            assert not session.can_rewind(length)
            with pytest.raises(kv.errors.NotRestorableError) as refused:
                session.rewind(length)
            assert refused.value.nearest <= 20
            assert session.can_rewind(refused.value.nearest)
            assert session.length == 35
        if kind == "dense":
            assert refused.value.nearest == 20
            session.rewind(30)
            session.append(prompt[30:])
            model(session.decode())
        session.rewind(refused.value.nearest)
        session.append(prompt[session.length :])
        compute(session, model)
        assert session.length == 35
    assert run(cache, prompt, model).reused == 34
    assert cache.check() == []


def test_a_recorded_image_is_not_cut_either() -> None:
    """Neither computed nor half forgotten: a rewind that cuts it off takes all of it."""
    cache, model = make("dense", **SMALL)
    with cache.begin(words(1, 10)) as session:
        compute(session, model)
        session.append(image("later", 6))
        assert [length for length in range(17) if not session.can_rewind(length)] == [*range(11, 16)]
        with pytest.raises(kv.errors.NotRestorableError) as refused:
            session.rewind(13)
        assert refused.value.nearest == 10
        session.rewind(10)
        session.append([1, 2, 3, 4, 5, 6])
        model(session.decode())
        assert all(session.can_rewind(length) for length in range(17))
        session.append(image("later", 6))
        twin = session.branch()
        model(twin.decode())
        assert not twin.can_rewind(20)
        twin.close()
    assert cache.check() == []


def test_a_prompt_that_diverges_inside_a_span_leaves_a_point_to_resume_from() -> None:
    """The capture that is scheduled where a match ends is moved out of a span: the third one reuses what is before."""
    cache, model = make("hybrid", 512, spacing=512, spans=[(20, 40)])
    a = words(1, 60)
    reused = []
    for offset in range(4):
        prompt = [*a[:30], (a[30] + offset) % 97, *words(offset, 29)]
        reused.append(run(cache, prompt, model, atomic=[(20, 40)]).reused)
    assert reused == [0, 0, 20, 20]


def test_images_and_pages(kind: str) -> None:
    """Sent to the host and back, an image is whole and right."""
    cache, model = make(kind, **SMALL, host_bytes="8MiB")
    prompt = [*words(1, 20), *image("paged", 30), *words(2, 10)]
    run(cache, prompt, model)
    assert cache.page_out(prompt) > 0
    assert {node.tier for node in cache.nodes()} == {"host"}
    session = run(cache, prompt, model)
    assert (session.reused, session.tier) == (59, "host")
    part = run(cache, [*prompt[:50], *words(9, 5)], model)
    assert part.matched == 50
    assert cache.check() == []


def test_a_pool_too_small_for_the_rest_of_an_image_changes_nothing() -> None:
    cache, model = make("dense", 40, growth=0)
    prompt = [*words(1, 20), *image("large", 18)]
    with cache.begin(words(7, 10)) as other:
        compute(other, model)
        with cache.begin(prompt) as session:
            steps = session.prefill(chunk=8)
            for _ in range(3):
                model(next(steps))
            assert session.length == 20
            with pytest.raises(kv.errors.CacheFullError):
                next(steps)
            assert session.length == 20
    assert cache.check() == []


def test_the_model_would_see_half_a_span() -> None:
    """The check behind these tests: codes inside a span are those of its end."""
    ids = image("probe", 4)
    history = History("default", [1, *ids, 2])
    assert history.ends.tolist() == [1, 5, 5, 5, 5, 6]
    assert history.inside(3)
    assert not history.inside(1)
    assert KindsModel([]).layers == []
