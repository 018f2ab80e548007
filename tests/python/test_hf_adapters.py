"""Adapters of peft that are switched, merged, scaled, loaded and deleted while a cache is open on the model."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from transformers import LogitsProcessor  # noqa: E402

import bounds  # noqa: E402
import hf_changes as changes  # noqa: E402
import hf_models as hf  # noqa: E402
from circles import CIRCLE  # noqa: E402
from hf_changes import logits  # noqa: E402

# peft calls what transformers has renamed since.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Adapter . was active which is now deleted:UserWarning"),
    pytest.mark.filterwarnings("ignore:Already found a `peft_config` attribute:UserWarning"),
]

FORMS = ["copy", "cells"]
IDS = hf.prompt(20)
WALKS = {"test": 1, "ci": 6}.get(CIRCLE, 300)


def close(got: Any, wanted: Any) -> None:
    bounds.close(got, wanted[:, -got.shape[1] :], bounds.LOGITS_OF_TORCH)


@pytest.fixture(params=FORMS)
def cache(request: pytest.FixtureRequest) -> Iterator[Any]:
    with kv.hf.Cache(changes.adapted(peft), capacity=1024, form=request.param) as made:
        yield made


def asked(cache: Any, ids: Any = IDS) -> int:
    """A new session's answer is right; returns what it reused."""
    with cache.session() as past:
        close(logits(cache.model, ids, past), logits(cache.model, ids))
        assert past.why == [None]
        return int(past.reused)


def test_each_adapter_finds_what_it_computed(cache: Any) -> None:
    """x, y, none, x again, both: what the bare model knows is that of disabled adapters, too."""
    model = cache.model
    assert [asked(cache), asked(cache), cache.stale()] == [0, 19, False]
    model.set_adapter("y")
    assert [cache.stale(), asked(cache), asked(cache)] == [True, 0, 19]
    with model.disable_adapter():
        assert [asked(cache), asked(cache)] == [0, 19]
        model.set_adapter("x")
        assert asked(cache) == 19, "none is active, whichever would be"
    assert [asked(cache), cache.stale()] == [19, False]
    model.base_model.set_adapter(["x", "y"])
    assert [asked(cache), asked(cache)] == [0, 19]
    assert cache.prefix_cache.check() == []


def test_another_cache_on_the_same_folder(tmp_path: Path) -> None:
    """By the fingerprint, and by a name of the caller's for the weights."""
    model = changes.adapted(peft)
    for name in (None, "mine"):
        options: dict[str, Any] = {
            "capacity": 256,
            "host_bytes": "1MiB",
            "disk": tmp_path / str(name),
            "fingerprint": name,
        }
        for adapter, reused in (("x", [0, 19]), ("y", [0, 19]), ("x", [19])):
            model.set_adapter(adapter)
            with kv.hf.Cache(model, **options) as cache:
                assert [asked(cache) for _ in reused] == reused
        with kv.hf.Cache(model, **options) as cache:
            model.set_adapter("y")
            asked(cache)
        model.set_adapter("x")


def test_what_is_loaded_and_not_active_is_nothing(cache: Any, tmp_path: Path) -> None:
    model = cache.model
    asked(cache)
    model.save_pretrained(tmp_path, selected_adapters=["y"])
    model.load_adapter(tmp_path / "y", "z")
    model.eval()
    assert asked(cache) == 19
    model.set_adapter("z")
    assert [asked(cache), asked(cache)] == [0, 19]
    model.set_adapter("x")
    model.delete_adapter("y")
    assert [asked(cache), cache.stale()] == [19, False]


def test_merged(cache: Any) -> None:
    """Merging writes to the weights; taking it out again leaves them as they were, or off by a rounding."""
    model = cache.model
    asked(cache)
    model.merge_adapter()
    assert cache.stale()
    assert [asked(cache), asked(cache)] == [0, 19]
    model.unmerge_adapter()
    assert asked(cache) in (0, 19)
    model.merge_adapter()
    with model.disable_adapter(), cache.session() as past:  # this pass takes it out
        close(logits(model, IDS, past), logits(model, IDS))
        assert "merged and disabled" in str(past.why)


def test_merged_for_good() -> None:
    model = changes.adapted(peft)
    with kv.hf.Cache(model, capacity=256) as cache, cache.session() as past:
        asked(cache)
        bare = model.merge_and_unload()
        close(logits(bare, IDS, past), logits(bare, IDS))
        assert "written to" in str(past.why) and "self_attn.q_proj.weight" in str(past.why)


def test_adapters_by_row(cache: Any) -> None:
    """``adapter_names`` of forward puts hooks on the layers for the call."""
    both = IDS.repeat(2, 1)
    asked(cache)
    names = ["y", "__base__"]
    with cache.session() as past:
        got = logits(cache.model, both, past, adapter_names=names)
        close(got, logits(cache.model, both, adapter_names=names))
        assert past.reused == 0 and all("hook" in str(why) for why in past.why)


def test_between_prefill_and_the_next_token(cache: Any) -> None:
    """What x computed of the prompt is no part of y's answer; padding, beams and branches come along."""
    model, more = cache.model, hf.prompt(2, seed=4, rows=2)
    ids = hf.prompt(12, rows=2)
    mask = torch.ones(2, 14, dtype=torch.long)
    mask[0, :4] = 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    with cache.session() as past:
        logits(model, ids, past, attention_mask=mask[:, :12], position_ids=places[:, :12])
        for adapter in ("y", "x", "y"):
            model.set_adapter(adapter)
            branch = past.branch()
            got = logits(model, more, branch, attention_mask=mask, position_ids=places[:, 12:])
            whole = logits(model, torch.cat([ids, more], 1), attention_mask=mask, position_ids=places)
            close(got, whole)
            assert [len(tokens) for tokens in branch.tokens] == [10, 14]
            branch.close()
        assert (past.columns, [len(tokens) for tokens in past.tokens]) == (12, [8, 12])


def test_a_session_that_was_told_its_prompt(cache: Any) -> None:
    model = cache.model
    asked(cache)
    for given in ("all", "the rest"):
        model.set_adapter("x")
        with cache.session(IDS) as past:
            assert past.reused == 19
            model.set_adapter("y")
            close(logits(model, IDS if given == "all" else past.remaining, past), logits(model, IDS))
            assert past.tokens == IDS.tolist()


class Switching(LogitsProcessor):
    """Switches adapters when so many tokens are there."""

    def __init__(self, model: Any, at: int) -> None:
        self.model, self.at = model, at

    def __call__(self, ids: Any, scores: Any) -> Any:
        if ids.shape[1] == self.at:
            self.model.set_adapter("y")
        return scores


def test_switched_inside_generate(cache: Any) -> None:
    """As without any cache, where each step computes all of the text with the adapter of the moment."""
    model, answers = cache.model, []
    for past in (None, cache.session(), cache.session(IDS)):
        model.set_adapter("x")
        switch = transformers.LogitsProcessorList([Switching(model, 23)])
        uncached = {"use_cache": False} if past is None else {}
        answers.append(hf.answer(model, IDS, past, logits_processor=switch, **uncached))
    for answer in answers[1:]:
        hf.close(answer, answers[0])


def test_a_pass_that_fails_after_a_switch(cache: Any) -> None:
    """The session stands where it was, and has what the first adapter computed."""
    model, more = cache.model, hf.prompt(3, seed=2)
    with cache.session() as past:
        logits(model, IDS, past)
        model.set_adapter("y")
        hooked = model.get_decoder().layers[-1].register_forward_pre_hook(lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            logits(model, more, past)
        hooked.remove()
        assert (past.columns, past.tokens, past.why) == (20, IDS.tolist(), [None])
        model.set_adapter("x")
        close(logits(model, more, past), logits(model, torch.cat([IDS, more], 1)))
        assert past.why == [None]


def test_embeddings_cannot_be_looked_up_again(cache: Any) -> None:
    model = cache.model
    embeds = model.get_input_embeddings()(IDS).detach()
    with torch.no_grad(), cache.session() as past:
        model(inputs_embeds=embeds, cache=past)
        model.set_adapter("y")
        with pytest.raises(kv.errors.NotSupportedError, match="allowed a new session"):
            model(hf.prompt(2), cache=past)


def test_labels_and_rows_through_peft(cache: Any) -> None:
    asked(cache)
    for options in ({"labels": IDS}, {"logits_to_keep": torch.arange(4)}, {"output_hidden_states": True}):
        with torch.no_grad(), cache.session() as past:
            got, wanted = cache.model(IDS, cache=past, **options), cache.model(IDS, **options)
            bounds.close(got.logits, wanted.logits, bounds.LOGITS_OF_TORCH)
            assert past.reused == 0 and next(iter(options)) in str(past.why)


def test_transformers_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """``add_adapter`` and its kin, without a model of peft around. They ask for a peft that PyPI does not have yet."""
    monkeypatch.setattr(transformers.integrations.peft, "MIN_PEFT_VERSION", peft.__version__)
    model = copy.deepcopy(hf.tiny("qwen3"))
    with kv.hf.Cache(model, capacity=512) as cache:
        asked(cache)
        for name in ("x", "y"):
            torch.manual_seed(ord(name))
            model.add_adapter(peft.LoraConfig(r=2, target_modules=["v_proj"], init_lora_weights=False), name)
        model.eval()
        assert [asked(cache), asked(cache)] == [0, 19]
        model.set_adapter("x")
        assert asked(cache) == 0
        model.disable_adapters()
        assert [asked(cache), cache.stale()] == [19, False], "the bare model, as when the cache was made"
        model.enable_adapters()
        assert asked(cache) == 19
        model.delete_adapter("x")
        model.delete_adapter("y")
        assert asked(cache) == 19


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"target_modules": "all-linear", "lora_dropout": 0.1},
        *(
            pytest.param(each, marks=pytest.mark.ci)
            for each in (
                {"use_rslora": True},
                {"target_modules": ["embed_tokens", "q_proj"]},
                {"modules_to_save": ["input_layernorm"]},
                {"trainable_token_indices": {"embed_tokens": [1, 2]}},
                {"target_modules": None, "target_parameters": ["mlp.up_proj.weight"]},
            )
        ),
    ],
)
def test_kinds_of_lora(options: Any) -> None:
    with changes.World(changes.adapted(peft, **options), "copy") as world:
        for name in ("other_adapter", "no_adapter", "other_adapter"):
            world.check()
            world.make(name, changes.SWITCHED[name])
            world.check()
            world.undo(name)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["IA3Config", "LoHaConfig", "VeraConfig", "OFTConfig", "PromptTuningConfig"])
def test_other_tuners(kind: str) -> None:
    """Of which nothing is known: all that is loaded counts."""
    of_layers = {"target_modules": ["v_proj", "down_proj"], "init_weights": False}
    own: dict[str, dict[str, Any]] = {
        "IA3Config": {**of_layers, "feedforward_modules": ["down_proj"], "init_ia3_weights": False},
        "OFTConfig": {**of_layers, "oft_block_size": 4},
        "PromptTuningConfig": {"task_type": "CAUSAL_LM", "num_virtual_tokens": 3},
    }
    own["IA3Config"].pop("init_weights")
    config = getattr(peft, kind)(**own.get(kind, of_layers))
    model = peft.get_peft_model(copy.deepcopy(hf.tiny("llama")), config).eval()
    with kv.hf.Cache(model, capacity=256) as cache:
        for disabled in (False, True, False):
            for _ in range(2):
                with model.disable_adapter() if disabled else torch.no_grad(), cache.session() as past:
                    close(logits(model, IDS, past), logits(model, IDS))


@pytest.mark.ci
def test_prefix_tuning_has_a_cache_of_its_own() -> None:
    config = peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = peft.get_peft_model(copy.deepcopy(hf.tiny("llama")), config).eval()
    with kv.hf.Cache(model, capacity=256) as cache, pytest.raises(kv.errors.NotSupportedError, match="another cache"):
        logits(model, IDS, cache.session())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(WALKS))
def test_at_random(seed: int, form: str) -> None:
    """Adapters and a few other changes, in any order."""
    print("seed", seed)
    names = ("hook", "scale_of_attention", "training", "eager", "autocast", "other_module")
    table = {**changes.SWITCHED, **{name: changes.UNDONE[name] for name in names}}
    with changes.World(changes.adapted(peft), form, seed) as world:
        world.check()
        world.walk(table, 25 if CIRCLE != "test" else 12)
        print(world.reused, "tokens reused")
