"""A model that changes between two calls: a session computes what the model computes now, and reuses nothing else."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import bounds  # noqa: E402
import hf_changes as changes  # noqa: E402
import hf_models as hf  # noqa: E402
from circles import CIRCLE  # noqa: E402

FORMS = ["copy", "cells"]
IN_BOTH = ("hook", "eager", "attention_of_ones_own", "half")
LATER = (
    "pre_hook",
    "bound_method",
    "activation",
    "epsilon",
    "layers_change_places",
    "other_data",
    "training_of_a_layer",
)
SEEDS = {"test": 1, "ci": 5}.get(CIRCLE, 200)
WALKED = ["llama", "qwen3", "mistral"]  # whose parts have the names that the changes look for


def forms(names: Any) -> list[Any]:
    """Each with both forms: in CI, but for one of a kind with the first, and what the second may see otherwise."""
    quick = [("copy", name) for name in names if name not in LATER] + [
        ("cells", name) for name in names if name in IN_BOTH
    ]
    both = [(form, name) for form in FORMS for name in names]
    return [*quick, *(pytest.param(*each, marks=pytest.mark.ci) for each in both if each not in quick)]


@pytest.mark.parametrize(("form", "name"), forms(changes.UNDONE))
def test_a_change_and_back(form: str, name: str) -> None:
    with changes.World(copy.deepcopy(hf.tiny("llama")), form) as world:
        world.check()
        world.make(name, changes.UNDONE[name])
        world.check()
        world.undo(name)
        world.check()
        assert not world.cache.stale()
        assert world.note[1] == [None]


@pytest.mark.parametrize(("form", "name"), forms(changes.LASTING))
def test_a_change_that_lasts(form: str, name: str) -> None:
    with changes.World(copy.deepcopy(hf.tiny("llama")), form) as world:
        world.check()
        changes.LASTING[name](world)
        assert world.cache.stale()
        world.check()
        assert "written to" in str(world.note[1])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_at_random(seed: int, form: str) -> None:
    """Changes that are undone, in any order, and one that lasts at the end."""
    print("seed", seed)
    with changes.World(copy.deepcopy(hf.tiny(WALKED[seed % len(WALKED)])), form, seed) as world:
        world.check()
        world.walk(changes.UNDONE, 30 if CIRCLE != "test" else 15)
        print(world.reused, "tokens reused")
        changes.LASTING[world.chance.choice(list(changes.LASTING))](world)
        world.check()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("hook", "a forward hook on layers.0.mlp"),
        ("global_hook", "a forward hook on all modules"),
        ("replaced_forward", "a forward that was replaced: layers.0.mlp"),
        ("training", "training mode"),
        ("training_of_a_layer", "training mode: layers.0"),
        ("fewer_layers", "its layers keep"),
        ("flag_of_the_config", "output_hidden_states"),
    ],
)
def test_why_nothing_is_kept(name: str, why: str) -> None:
    with changes.World(copy.deepcopy(hf.tiny("llama")), "copy") as world:
        world.make(name, changes.UNDONE[name])
        world.check()
        assert world.note[0] == 0 and why in str(world.note[1])


def test_states_have_places_of_their_own() -> None:
    """K and V of a state are found in it alone, by its namespace of the tree, too."""
    model, ids = copy.deepcopy(hf.tiny("llama")), hf.prompt(12)
    known = ids[0].tolist()
    with kv.hf.Cache(model, capacity=256) as cache:
        for factor in (1.0, 2.0, 1.0, 2.0):
            model.get_decoder().layers[0].self_attn.scaling = 8**-0.5 * factor
            with cache.session() as past:
                changes.logits(model, ids, past)
                assert (past.namespace == "default") is (factor == 1.0)
                assert cache.prefix_cache.plan([*known, 1], namespace=past.namespace).matched == 12
        assert cache.prefix_cache.stats()["tokens"] == 24
        assert past.reused == 11


def test_fingerprints_of_states() -> None:
    """Equal where K and V are, in another process, too, and different after each of the changes."""
    model = copy.deepcopy(hf.tiny("llama"))
    first, same = kv.hf.fingerprint(model), ("eager", "checkpointing", "hidden_states_asked_for", "flag_of_the_config")
    with changes.World(model, "copy") as world:
        for name, change in changes.UNDONE.items():
            if name not in ("hook_with_a_strength", "autocast"):  # which are there during calls only
                world.make(name, change)
                assert (kv.hf.fingerprint(model) == first) is (name in same), name
                world.undo(name)
    assert kv.hf.fingerprint(model) == first
    with torch.autocast("cpu", torch.bfloat16):
        assert kv.hf.fingerprint(model) != first


def test_dynamic_quantization_is_not_kept() -> None:
    """What a token becomes depends on the others in its pass; and its weights are where nobody looks."""
    model, ids = copy.deepcopy(hf.tiny("llama")), hf.prompt(12)
    with kv.hf.Cache(model, capacity=256) as cache, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        changes.logits(model, ids, cache.session())
        torch.ao.quantization.quantize_dynamic(model.get_decoder(), {torch.nn.Linear}, inplace=True)
        with cache.session() as past:
            bounds.close(changes.logits(model, ids, past), changes.logits(model, ids), bounds.LOGITS_OF_TORCH)
            assert past.reused == 0 and "torch.ao" in str(past.why)
        assert kv.hf.fingerprint(model) == kv.hf.fingerprint(model)
        assert kv.hf.fingerprint(copy.deepcopy(model)) != kv.hf.fingerprint(model)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_frequencies_that_follow_the_length(kind: str) -> None:
    """Some kinds of RoPE turn all keys otherwise once the text is long: what is longer is neither found nor kept."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 24}
    if kind == "longrope":
        rope.update(short_factor=[1.0] * 4, long_factor=[3.0] * 4)
    own = {**hf.COMMON, "head_dim": 8, "max_position_embeddings": 24 if kind == "dynamic" else 48}
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**own, rope_parameters=rope)).eval()
    text = hf.prompt(60)
    with kv.hf.Cache(model, capacity=512) as cache:
        for length, reused in ((20, 0), (40, 0), (20, 19), (22, 20), (60, 0), (22, 21)):
            with cache.session() as past:
                got, wanted = (hf.answer(model, text[:, :length], each, tokens=6) for each in (past, None))
                hf.close(got, wanted)
                assert past.reused == reused
                assert (length + 6 > 24) is ("change with the length" in str(past.why))
        assert not cache.stale()


def test_heads_that_answer_from_one_row_are_refused() -> None:
    config = hf.tiny("llama").config
    for kind in (transformers.LlamaForSequenceClassification, transformers.LlamaForTokenClassification):
        with pytest.raises(kv.errors.NotSupportedError, match=kind.__name__):
            kv.hf.Cache(kind(config))


def test_hooks_of_accelerate_move_tensors_only() -> None:
    accelerate = pytest.importorskip("accelerate")
    model, ids = copy.deepcopy(hf.tiny("llama")), hf.prompt(12)
    accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True)
    with kv.hf.Cache(model, capacity=256) as cache:
        for reused in (0, 11):
            with cache.session() as past:
                changes.logits(model, ids, past)
                assert (past.reused, past.why) == (reused, [None])


@pytest.mark.ci
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ["model", "decoder", "layer", "wrapped"])
def test_compiled(what: str, form: str) -> None:
    """A call with a session is not traced; what was compiled below it still runs so, and is a state of its own."""
    model, ids = copy.deepcopy(hf.tiny("llama")), hf.prompt(12)
    with kv.hf.Cache(model, capacity=256, form=form) as cache:
        changes.logits(model, ids, cache.session())
        called = torch.compile(model, backend="eager") if what == "wrapped" else model
        parts = {"model": model, "decoder": model.get_decoder(), "layer": model.get_decoder().layers[0]}
        if what in parts:
            parts[what].compile(backend="eager")
        for reused in (11 if what in ("model", "wrapped") else 0, 11):
            with cache.session() as past:
                wanted = changes.logits(called, ids)
                bounds.close(changes.logits(called, ids, past), wanted[:, reused:], bounds.LOGITS_OF_TORCH)
                assert (past.reused, past.why) == (reused, [None])
    torch._dynamo.reset()
