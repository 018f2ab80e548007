"""A transformers session whose pass fails, is interrupted or is not of its tokens, or that lacks room."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import bounds  # noqa: E402
import hf_models as hf  # noqa: E402
from processes import PATIENCE, run_python  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_over")


KINDS = [("copy", "llama"), ("cells", "llama"), ("copy", "gemma3"), ("copy", "qwen3_5"), ("copy", "glm_moe_dsa")]


@pytest.fixture(params=KINDS)
def cache(request: pytest.FixtureRequest) -> Iterator[Any]:
    form, name = request.param
    with kv.hf.Cache(hf.tiny(name), capacity=512, slots=32, form=form) as made:
        yield made


@pytest.fixture(params=["copy", "cells"])
def small(request: pytest.FixtureRequest) -> Iterator[Any]:
    with kv.hf.Cache(hf.tiny("llama"), capacity=64, host_bytes=0, form=request.param) as made:
        yield made


def logits(model: Any, ids: Any, past: Any = None) -> Any:
    with torch.no_grad():
        return model(ids, cache=past).logits


def close(got: Any, wanted: Any) -> None:
    bounds.close(got.detach(), wanted.detach(), bounds.LOGITS_OF_TORCH)


class Broken:
    """Raises in the last layer of a model, after the layers before it have stored their K and V."""

    def __init__(self, model: Any, error: type[BaseException], calls: int = 1) -> None:
        self._layer, self._error, self._left = model.get_decoder().layers[-1], error, calls

    def __enter__(self) -> Broken:
        self._hook = self._layer.register_forward_pre_hook(self._raise)
        return self

    def __exit__(self, *args: Any) -> None:
        self._hook.remove()

    def _raise(self, *args: Any) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error("broken")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_pass_that_fails_leaves_no_trace(cache: Any, error: type[BaseException]) -> None:
    """Where there are states, also in its last piece."""
    ids, more = hf.prompt(20), hf.prompt(8, seed=2)
    with cache.session() as past:
        logits(cache.model, ids, past)
        for calls in (1, 2) if cache.layout.states else (1,):
            with Broken(cache.model, error, calls), pytest.raises(error):
                logits(cache.model, more, past)
            assert (past.columns, past.get_seq_length(), past.tokens) == (20, 20, ids.tolist())
        whole = torch.cat([ids, more], 1)
        close(logits(cache.model, more, past), logits(cache.model, whole)[:, 20:])
    assert cache.prefix_cache.check() == []


def test_a_first_pass_that_fails(cache: Any) -> None:
    ids = hf.prompt(20)
    for _ in range(2):
        with cache.session() as past:
            with Broken(cache.model, RuntimeError), pytest.raises(RuntimeError, match="broken"):
                logits(cache.model, ids, past)
            close(logits(cache.model, ids, past), logits(cache.model, ids)[:, past.reused :])


def test_a_session_that_nobody_holds_is_closed(cache: Any) -> None:
    past = cache.session()
    logits(cache.model, hf.prompt(20), past)
    assert cache.prefix_cache.stats()["sessions"] == 1
    del past
    gc.collect()
    assert cache.prefix_cache.stats()["sessions"] == 0


def test_a_prompt_that_is_too_long_is_computed_all_the_same(small: Any) -> None:
    ids = hf.prompt(80)
    with small.session() as past:
        hf.close(hf.answer(small.model, ids, past), hf.answer(small.model, ids))
        assert "80 tokens in a cache for 64" in past.why[0]
    assert small.prefix_cache.stats()["nodes"] == 0


def test_an_answer_outgrows_the_cache(small: Any) -> None:
    ids = hf.prompt(60)
    with small.session() as past:
        hf.close(hf.answer(small.model, ids, past), hf.answer(small.model, ids))
        assert past.why[0] is not None
        assert past.columns == 67
    assert small.prefix_cache.plan(ids[0].tolist()).matched >= 59


def test_others_hold_all_of_the_memory(small: Any) -> None:
    with small.session() as first, small.session() as second:
        logits(small.model, hf.prompt(50), first)
        ids = hf.prompt(30, seed=2)
        hf.close(hf.answer(small.model, ids, second), hf.answer(small.model, ids))
        assert second.why[0] is not None
        longer = torch.cat([torch.tensor(second.tokens), hf.prompt(9)], 1)
        close(logits(small.model, longer[:, 37:], second), logits(small.model, longer)[:, 37:])


def test_a_cache_that_is_closed_meanwhile() -> None:
    """Tensors go on; cells are gone."""
    model, ids = hf.tiny("llama"), hf.prompt(20)
    for form in ("copy", "cells"):
        cache = kv.hf.Cache(model, capacity=256, form=form)
        past = cache.session()
        logits(model, ids, past)
        thread = threading.Thread(target=cache.close)
        thread.start()
        thread.join(PATIENCE)
        with pytest.raises(kv.errors.ClosedError):
            cache.session()
        assert "forward" not in model.get_decoder().__dict__
        assert model.config._attn_implementation == "sdpa"


def test_one_call_at_a_time(cache: Any) -> None:
    """From inside a pass the session is asked again, as a second thread would."""
    seen: list[Any] = []
    with cache.session() as past:

        def again(*args: Any) -> None:
            try:
                past.crop(0)
            except kv.errors.BusyError as error:
                seen.append(error)

        hook = cache.model.get_decoder().layers[-1].register_forward_pre_hook(again)
        logits(cache.model, hf.prompt(4), past)
        hook.remove()
        past.close()
        assert seen
        with pytest.raises(kv.errors.ClosedError):
            logits(cache.model, hf.prompt(4), past)


def test_threads_on_one_cache(cache: Any) -> None:
    prompts = [torch.cat([hf.prompt(20), hf.prompt(9, seed=seed)], 1) for seed in range(4)]
    wanted = [hf.answer(cache.model, ids) for ids in prompts]
    failed: list[Any] = []

    def work(at: int) -> None:
        try:
            for turn in range(3):
                which = (at + turn) % len(prompts)
                with cache.session() as past:
                    hf.close(hf.answer(cache.model, prompts[which], past), wanted[which])
                    assert past.why == [None]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failed == []
    assert cache.prefix_cache.check() == []


class Overtaken:
    """A session of which somebody else publishes one token more, each time that it is asked for a step."""

    def __init__(self, session: Any, publish: Iterator[None]) -> None:
        self._session, self._publish = session, publish

    @property
    def length(self) -> int:
        return int(self._session.length)

    def prefill(self, chunk: int) -> Any:
        next(self._publish, None)
        return self._session.prefill(chunk=chunk)


@pytest.mark.parametrize("first", [1, 3])
def test_a_row_that_is_overtaken_stays_within_its_pass(first: int) -> None:
    """However often others publish what a row is about to write: its steps end where the pass that it computed ends."""
    from kvtrie.hf.row import Row

    with kv.PrefixCache([kv.caches.CausalCache([0], 1, 4, 64, dtype="float32", device="host")], host_bytes=0) as cache:
        rows = np.ones((1, 1, 4), np.float32)

        def publish() -> Iterator[None]:
            with cache.begin(list(range(8))) as other:
                for number, step in enumerate(other.prefill(chunk=1), 1):
                    step.put(0, rows, rows)
                    del step
                    if number >= first:
                        yield

        with cache.begin(list(range(20))) as session:
            for step in Row(Overtaken(session, publish()), []).steps(9):
                assert int(step.positions[-1]) < 9
                many = np.ones((len(step.tokens), 1, 4), np.float32)
                step.put(0, many, many)
                del step
            assert session.length == 9


# ---- what does not follow from the tokens ----------------------------------------------------------------------------


def odd_passes() -> dict[str, Any]:
    ids = hf.prompt(12)
    holes = torch.ones_like(ids)
    holes[0, 5] = 0
    causal = torch.full((12, 12), float("-inf")).triu(1)[None, None]
    embeddings = hf.tiny("llama").get_input_embeddings()(ids).detach()
    return {
        "inputs_embeds": {"inputs_embeds": embeddings},
        "holes": {"input_ids": ids, "attention_mask": holes},
        "not [batch": {"input_ids": ids, "attention_mask": causal},
        "position_ids": {"input_ids": ids, "position_ids": torch.arange(12)[None] * 2},
    }


@pytest.mark.parametrize("why", list(odd_passes()))
@pytest.mark.parametrize("form", ["copy", "cells"])
@pytest.mark.parametrize("known", [False, True])
def test_other_inputs_are_computed_and_not_kept(form: str, why: str, known: bool) -> None:
    model, given = hf.tiny("llama"), odd_passes()[why]
    before = hf.prompt(6, seed=3)
    with kv.hf.Cache(model, capacity=256, form=form) as cache, cache.session() as past, torch.no_grad():
        own = hf.transformers.DynamicCache(config=model.config)
        if known:
            logits(model, before, past)
            logits(model, before, own)
            if "attention_mask" in given:
                mask = given["attention_mask"]
                wider = torch.cat([torch.ones(1, 6, dtype=mask.dtype), mask], 1) if mask.ndim == 2 else mask
                given = {
                    **given,
                    "attention_mask": wider if mask.ndim == 2 else torch.cat([torch.zeros(1, 1, 12, 6), mask], -1),
                }
        close(model(**given, cache=past).logits, model(**given, cache=own).logits)
        assert why in past.why[0]
        more = hf.prompt(3, seed=4)
        close(model(more, cache=past).logits, model(more, cache=own).logits)
        assert cache.prefix_cache.stats()["tokens"] == (6 if known else 0)


def test_a_model_in_training_is_not_kept() -> None:
    model = copy.deepcopy(hf.tiny("llama"))
    with kv.hf.Cache(model, capacity=256) as cache, cache.session() as past:
        model.train()
        logits(model, hf.prompt(6), past)
        assert "training" in past.why[0]
        assert cache.prefix_cache.stats()["tokens"] == 0


def test_weights_that_changed_reuse_nothing() -> None:
    model, ids = copy.deepcopy(hf.tiny("llama")), hf.prompt(12)
    with kv.hf.Cache(model, capacity=256) as cache:
        with cache.session() as past:
            logits(model, ids, past)
        with torch.no_grad():
            model.get_decoder().layers[0].mlp.up_proj.weight.mul_(1.5)
        with cache.session() as past:
            assert torch.equal(logits(model, ids, past), logits(model, ids))
            assert "parameters" in past.why[0]


def test_a_copy_of_the_model_is_another_model() -> None:
    model, ids = hf.tiny("llama"), hf.prompt(12)
    with kv.hf.Cache(model, capacity=256) as cache:
        twin = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(0.5)
        assert bounds.difference(logits(twin, ids), logits(model, ids)) > 0.01
        with cache.session() as past, pytest.raises(kv.errors.ArgumentError, match="another model"):
            logits(twin, ids, past)


def test_gradients_need_the_copy() -> None:
    model = hf.tiny("llama")
    with kv.hf.Cache(model, capacity=256, form="cells") as cache, cache.session() as past:
        with pytest.raises(kv.errors.NotSupportedError, match="no_grad"):
            model(hf.prompt(4), cache=past)
        assert past.columns == 0
        logits(model, hf.prompt(4), past)
    with kv.hf.Cache(model, capacity=256) as cache, cache.session() as past:
        model(hf.prompt(4), cache=past).logits.sum().backward()
        model.zero_grad()


def test_wrong_arguments_are_named() -> None:
    model = hf.tiny("llama")
    for options, name in (
        ({"form": "other"}, "form"),
        ({"memory": "much"}, "memory"),
        ({"memory": "1KiB"}, "memory"),
        ({"memory": 0}, "memory"),
    ):
        with pytest.raises(kv.errors.ArgumentError, match=rf"\[hf.Cache\] {name}: got"):
            kv.hf.Cache(model, **options)
    for wrong in (None, object(), torch.nn.Linear(2, 2)):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[hf.Cache\] model: got"):
            kv.hf.Cache(wrong)
    with kv.hf.Cache(model, capacity=64) as cache:
        for ids in ([], [[]], torch.ones(2, 2, 2, dtype=torch.long), torch.ones(4)):
            with pytest.raises(kv.errors.ArgumentError, match=r"\[hf.session\] input_ids"):
                cache.session(ids)
        right = torch.tensor([[1, 1, 1, 0]])
        with pytest.raises(kv.errors.ArgumentError, match=r"\[hf.session\] attention_mask"):
            cache.session(hf.prompt(4), right)
        with cache.session() as past:
            logits(model, hf.prompt(4, rows=2), past)
            with pytest.raises(kv.errors.ArgumentError, match=r"\[hf\] input_ids: got 3 rows"):
                logits(model, hf.prompt(4, rows=3), past)
    assert "forward" not in model.get_decoder().__dict__


def test_models_with_states_and_cells() -> None:
    with pytest.raises(kv.errors.NotSupportedError, match="'copy'"):
        kv.hf.Cache(hf.tiny("lfm2"), form="cells")


def test_a_missing_extra_is_named() -> None:
    program = """
import sys
sys.modules["transformers"] = None
import kvtrie as kv
assert "torch" not in sys.modules
try:
    kv.hf.Cache
except kv.errors.NotSupportedError as error:
    print(error)
"""
    ended = run_python("-c", program)
    assert ended.stdout == "[hf] needs transformers: pip install 'kvtrie[hf]'\n", ended.stderr


def test_caches_and_sessions_are_no_values() -> None:
    """As test_objects has it for classes that need no transformers. A copy of a session is a branch."""
    with kv.hf.Cache(hf.tiny("llama"), capacity=64, device="host") as cache, cache.session() as past:
        ids = hf.prompt(6)
        first = logits(hf.tiny("llama"), ids, past)
        for made in (cache, past):
            for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
                with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[pickle\] object"):
                    pickle.dumps(made, protocol)
            with pytest.raises(kv.errors.ArgumentTypeError, match="ran already"):
                made.__init__(cache, "a")
            with pytest.raises(kv.errors.ArgumentTypeError, match="__class__"):
                made.__class__ = kv.Batcher
            with pytest.raises(kv.errors.ArgumentTypeError, match="did not run"):
                type(made).__new__(type(made)).close()
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[pickle\] object"):
            copy.copy(cache)
        twin = copy.copy(past)
        assert (twin.columns, past.columns) == (6, 6)
        assert first is not None
