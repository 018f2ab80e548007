"""A session of transformers after an exception at any point or a fork, calls made again, and what is given back."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import kvtrie as kv
from circles import CIRCLE

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import bounds  # noqa: E402
import hf_models as hf  # noqa: E402
import hf_ways as ways  # noqa: E402
from kvtrie.hf import standing  # noqa: E402
from place_sweeps import sweep  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_over")

SEED = 34


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that a destructor met is nobody's."""
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)
    monkeypatch.setattr("threading.excepthook", lambda _: None)


def swept(what: str, chosen: Any, places: int) -> None:
    try:
        report = sweep(what, chosen, places, SEED)
    finally:
        ways.close_all()
    assert report.played > 0.9 * report.points and not report.wrong, report.text()


@pytest.mark.usefixtures("quiet")
def test_what_goes_on_after_an_exception_is_the_same() -> None:
    swept("errors", (ways.FromTheStart,), 2)


@pytest.mark.ci
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("way", ways.WAYS, ids=lambda way: way.__name__)
def test_each_way_goes_on_after_an_exception(way: Any) -> None:
    swept("errors", (way,), 2 if CIRCLE == "ci" else 0)


@pytest.mark.ci
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("what", ["closing", "forks"])
def test_closing_and_forks_at_any_point(what: str) -> None:
    some = (ways.HfWay, ways.Cells) if CIRCLE == "ci" else ways.WAYS
    swept(what, some, 2 if CIRCLE == "ci" else 100)


# ---- the same call again ---------------------------------------------------------------------------------------------


_KINDS = [
    ("copy", "llama"),
    ("cells", "llama"),
    ("copy", "gemma3"),
    ("copy", "qwen3_5"),
    ("copy", "mamba2"),
    ("copy", "glm_moe_dsa"),
]


@pytest.fixture(params=[_KINDS[0], *(pytest.param(each, marks=pytest.mark.ci) for each in _KINDS[1:])], ids="-".join)
def cache(request: pytest.FixtureRequest) -> Iterator[Any]:
    form, name = request.param
    with kv.hf.Cache(hf.tiny(name), capacity=512, slots=64, form=form) as made:
        yield made


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3}, {"prefill_chunk_size": 5}], ids=["greedy", "beams", "pieces"]
)
def test_generate_may_be_called_again_with_any_text(cache: Any, options: dict[str, Any]) -> None:
    """With the same, a shorter and another one, whatever the session has by then; transformers would leave out of it as
    many tokens as the session has."""
    if options.get("prefill_chunk_size") and not cache.layout.attention:
        pytest.skip("transformers has no pieces for models without attention")
    ids = hf.prompt(12)
    texts = [ids, ids, ids[:, :7], torch.cat([ids[:, :7], hf.prompt(4, seed=3)], 1), hf.prompt(12, seed=4)]
    with cache.session() as past:
        for text in texts:
            got, wanted = (ways.answer(cache.model, text, each, **options) for each in (past, None))
            assert torch.equal(got, wanted)
        longer = torch.cat([got[:1], hf.prompt(3, seed=5)], 1)
        assert torch.equal(
            ways.answer(cache.model, longer, past, **options), ways.answer(cache.model, longer, **options)
        )
        assert past.why[0] is None
    assert cache.prefix_cache.check() == []


def test_a_session_of_beams_goes_on_with_one_of_them() -> None:
    """The rows of the session are other beams than the text."""
    with kv.hf.Cache(hf.tiny("llama"), capacity=512) as cache, cache.session() as past:
        first = ways.answer(cache.model, hf.prompt(9), past, num_beams=3)
        text = torch.cat([first[:1], hf.prompt(3, seed=2)], 1)
        for options in ({"num_beams": 3}, {}):
            assert torch.equal(
                ways.answer(cache.model, text, past, **options), ways.answer(cache.model, text, **options)
            )


def test_assisted_generation_goes_on_with_a_session_that_has_something() -> None:
    with kv.hf.Cache(hf.tiny("llama"), capacity=512) as cache, cache.session() as past:
        text = hf.prompt(6).repeat(1, 4)
        for _ in range(2):
            got = ways.answer(cache.model, text, past, prompt_lookup_num_tokens=3)
            assert torch.equal(got, ways.answer(cache.model, text))
        text = torch.cat([got, hf.prompt(3, seed=2)], 1)
        got = ways.answer(cache.model, text, past, prompt_lookup_num_tokens=3)
        assert torch.equal(got, ways.answer(cache.model, text))


# ---- a pass that fails -----------------------------------------------------------------------------------------------


def test_a_call_that_fails_behind_its_pass_is_taken_back(cache: Any) -> None:
    """In the head: the layers have the pass, and the caller has no logits."""
    model, ids, more = cache.model, hf.prompt(10), hf.prompt(4, seed=2)
    with torch.no_grad(), cache.session() as past:
        model(ids, cache=past)
        hook = model.lm_head.register_forward_pre_hook(broken)
        with pytest.raises(KeyboardInterrupt):
            model(more, cache=past)
        hook.remove()
        assert (past.columns, past.tokens) == (10, ids.tolist())
        bounds.close(
            model(more, cache=past).logits, model(torch.cat([ids, more], 1)).logits[:, 10:], bounds.LOGITS_OF_TORCH
        )


def broken(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("behind", [False, True])
def test_a_second_exception_while_a_pass_is_undone(cache: Any, behind: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, more = cache.model, hf.prompt(10), hf.prompt(4, seed=2)

    def interrupted(place: Any) -> Any:
        if place.back is None:
            return own(place)
        if behind:
            own(place)
        raise KeyboardInterrupt

    with torch.no_grad(), cache.session() as past:
        model(ids, cache=past)
        own = standing.returned
        monkeypatch.setattr(standing, "returned", interrupted)
        last = (
            list(model.get_decoder().children())[-1] if "mamba" in model.config.model_type else model.get_decoder().norm
        )
        handle = last.register_forward_pre_hook(broken)
        with pytest.raises(KeyboardInterrupt):
            model(more, cache=past)
        handle.remove()
        monkeypatch.undo()
        assert (past.columns, past.tokens) == (10, ids.tolist())
        wanted = model(torch.cat([ids, more], 1)).logits[:, 10:]
        bounds.close(model(more, cache=past).logits, wanted, bounds.LOGITS_OF_TORCH)


def test_cells_that_ran_out_in_a_pass_that_fails() -> None:
    """The pass goes on with tensors, and these are as they were before it."""
    model, ids, more = hf.tiny("llama"), hf.prompt(50), hf.prompt(20, seed=2)
    with kv.hf.Cache(model, capacity=64, host_bytes=0, form="cells") as cache, cache.session() as past, torch.no_grad():
        model(ids, cache=past)
        hook = cache.decoder.layers[-1].register_forward_pre_hook(broken)
        cache.states.current = lambda thorough=False: past.state  # type: ignore[method-assign]  # the hook is ours
        with pytest.raises(KeyboardInterrupt):
            model(more, cache=past)
        hook.remove()
        assert past.get_seq_length() == 50 and past.why[0] is not None
        wanted = model(torch.cat([ids, more], 1)).logits[:, 50:]
        bounds.close(model(more, cache=past).logits, wanted, bounds.LOGITS_OF_TORCH)


def test_a_crop_that_one_layer_refuses_leaves_the_others() -> None:
    model, ids = hf.tiny("gemma3"), hf.prompt(12)
    with kv.hf.Cache(model, capacity=256) as cache, cache.session() as past, torch.no_grad():
        model(ids, cache=past)
        for layer in past.layers[2:]:
            layer.crop = broken
        with pytest.raises(KeyboardInterrupt):
            past.crop(-3)
        more = hf.prompt(3, seed=2)
        wanted = model(torch.cat([ids, more], 1)).logits[:, 12:]
        bounds.close(model(more, cache=past).logits, wanted, bounds.LOGITS_OF_TORCH)


# ---- what is given back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["copy", "cells"])
def test_a_cache_that_nobody_has_gives_the_model_back(form: str) -> None:
    model = hf.tiny("llama")
    cache = kv.hf.Cache(model, capacity=64, form=form)
    second = kv.hf.Cache(model, capacity=64, form=form)
    cache.close()
    cache.close()
    assert "forward" in model.__dict__
    del second
    gc.collect()
    assert "forward" not in model.__dict__ and "forward" not in model.get_decoder().__dict__
    assert model.config._attn_implementation == "sdpa"


def test_a_forked_process_is_refused_by_name() -> None:
    with kv.hf.Cache(hf.tiny("llama"), capacity=64) as cache, cache.session() as past:
        ways.answer(cache.model, hf.prompt(9), past)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if all(map(refused, calls_of(cache, past))) else 1)
        assert os.waitpid(child, 0)[1] == 0


def calls_of(cache: Any, past: Any) -> list[Any]:
    return [
        cache.session,
        cache.stale,
        past.branch,
        past.reset,
        lambda: past.crop(-1),
        lambda: cache.model(hf.prompt(2), cache=past),
    ]


def refused(call: Any) -> bool:
    try:
        call()
    except kv.errors.NotSupportedError as error:
        return "forked" in str(error)
    return False
