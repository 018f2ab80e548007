"""Models with windows, chunks, recurrent layers and experts against Hugging Face's goldens: logits and states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS, LOGITS_OF_KINDS, close, difference
from fake_step import FakeSession, FakeStep, sights_of
from kvtrie.models.attention_group import NO_ROTATION
from kvtrie.models.weights import open_folder, to_float32

GOLDENS = Path(__file__).parent / "goldens"
CASES = sorted(
    path.name for path in GOLDENS.iterdir() if path.name.startswith(("gemma3", "qwen3-next", "qwen3-5", "llama4"))
)
HYBRIDS = [name for name in CASES if (GOLDENS / name / "states.npz").exists()]


def config_of(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDENS / name / "config.json").read_text())
    return config


def weights_of(name: str) -> dict[str, Any]:
    return {key: to_float32(source.read(), source.dtype) for key, source in open_folder(GOLDENS / name).items()}


def logits_of(model: Any, session: FakeSession, tokens: Any, chunk: int) -> Any:
    return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.steps(tokens, chunk)])


@pytest.fixture(scope="module")
def tokens() -> Any:
    return np.load(GOLDENS / "tokens.npy")


def wanted_logits(name: str) -> Any:
    return np.load(GOLDENS / name / "logits.npy")


def test_there_is_a_golden_of_every_family() -> None:
    assert {config_of(name)["model_type"] for name in CASES} == {
        "gemma3_text",
        "qwen3_next",
        "qwen3_5_text",
        "qwen3_5_moe_text",
        "llama4_text",
    }


# ---- without a cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [pytest.param(72, marks=pytest.mark.soak), 7])
@pytest.mark.parametrize("name", CASES)
def test_layers_agree_with_transformers(name: str, chunk: int, tokens: Any) -> None:
    """Logits of all rows, and what the recurrent layers carry after them."""
    model = kv.models.load(GOLDENS / name, dtype="float32")
    session = FakeSession(sights_of(config_of(name)))
    close(logits_of(model, session, tokens, chunk), wanted_logits(name), LOGITS_OF_KINDS)
    if name in HYBRIDS:
        states = np.load(GOLDENS / name / "states.npz")
        for key in states:
            kind, layer = key.split(".")
            tail = states[key].shape[0]
            got = session.conv_state(int(layer), tail) if kind == "conv" else session.delta[int(layer)]
            close(got, states[key], LOGITS_OF_KINDS)


@pytest.mark.parametrize("name", CASES)
def test_last_rows_of_several_conversations(name: str, tokens: Any) -> None:
    """Rows of other conversations change nothing, and only the last row of each is finished."""
    model = kv.models.load(GOLDENS / name, dtype="float32")
    sessions = [FakeSession(sights_of(config_of(name))) for _ in range(3)]
    lengths = (30, 1, 72)
    alone = [model(FakeStep([(FakeSession(s.sights), tokens[:n])])) for s, n in zip(sessions, lengths)]
    together = np.asarray(model(FakeStep([(s, tokens[:n]) for s, n in zip(sessions, lengths)])))
    close(together, np.concatenate([np.asarray(part) for part in alone]), LOGITS)
    close(together, wanted_logits(name)[[n - 1 for n in lengths]], LOGITS_OF_KINDS)


@pytest.mark.parametrize("name", CASES)
def test_stored_dtype_is_exact(name: str, tokens: Any) -> None:
    model = kv.models.load(GOLDENS / name)
    logits = logits_of(model, FakeSession(sights_of(config_of(name))), tokens, 72)
    close(logits, wanted_logits(name), LOGITS_OF_KINDS)
    assert model.dtype == config_of(name)["dtype"]


# What each golden is there for: without it the logits are far off, so the comparison above can fail.
CHANGES = [
    ("gemma3-window-softcap", {"sliding_window": 10}),
    ("gemma3-window-softcap", {"final_logit_softcapping": None}),
    ("gemma3-window-softcap", {"query_pre_attn_scalar": 12}),
    ("gemma3-window-softcap", {"rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}}),
    ("gemma3-types-bias-untied", {"layer_types": ["full_attention"] * 4}),
    ("qwen3-next-experts", {"num_experts_per_tok": 2}),
    ("qwen3-next-experts", {"norm_topk_prob": False}),
    ("qwen3-next-experts", {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0}}),
    ("qwen3-next-sparse-bias", {"norm_topk_prob": True}),
    ("qwen3-5-dense", {"rope_parameters": {"partial_rotary_factor": 0.25, "rope_theta": 100.0}}),
    ("llama4-chunks", {"attention_chunk_size": 24}),
    ("llama4-chunks", {"use_qk_norm": False}),
    ("llama4-chunks", {"attn_temperature_tuning": False}),
    ("llama4-chunks", {"no_rope_layers": [1, 1, 1, 1, 1]}),
    ("llama4-scaled-one-expert", {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_goldens_see_what_they_are_there_for(name: str, change: dict[str, Any], tokens: Any) -> None:
    config = {**config_of(name), **change}
    model = kv.models.from_weights(config, weights_of(name))
    logits = logits_of(model, FakeSession(sights_of(config)), tokens, 72)
    assert difference(logits, wanted_logits(name)) > 30 * LOGITS.value


# ---- other forms of the same checkpoint ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gemma3-window-softcap", "gemma3-types-bias-untied"])
def test_both_generations_of_gemma_configurations_mean_the_same(name: str) -> None:
    config = config_of(name)
    rope = config.pop("rope_parameters")
    old = {**config, "rope_theta": rope["full_attention"]["rope_theta"]}
    old["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    if rope["full_attention"]["rope_type"] != "default":
        old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    if name == "gemma3-window-softcap":
        del old["layer_types"], old["_sliding_window_pattern"]
    assert kv.models.Gemma3.parse_config(old) == kv.models.Gemma3.parse_config(config_of(name))


def test_what_gemma_checkpoints_leave_out_is_the_default() -> None:
    config = kv.models.Gemma3.parse_config(
        {
            "text_config": {
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                "sliding_window": 1024,
            },
            "eos_token_id": [1, 106],
        }
    )
    assert (config.vocab_size, config.num_attention_heads, config.num_key_value_heads) == (262208, 8, 4)
    assert (config.head_dim, config.tie_word_embeddings, config.eos_token_ids) == (256, True, (1, 106))
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17, 23, 29]
    assert (config.rope_theta, config.rope_local_theta) == (1e6, 1e4)


PARTS = [
    ("gemma3-window-softcap", "Gemma3ForConditionalGeneration", "model.language_model.", "model.vision_tower.x"),
    ("gemma3-types-bias-untied", "Gemma3ForConditionalGeneration", "language_model.model.", "vision_tower.x"),
    ("qwen3-5-dense", "Qwen3_5ForConditionalGeneration", "model.language_model.", "model.visual.x"),
    ("llama4-chunks", "Llama4ForConditionalGeneration", "language_model.model.", "multi_modal_projector.x"),
]


@pytest.mark.parametrize(("name", "architecture", "prefix", "other"), PARTS)
def test_the_text_model_of_a_larger_one(name: str, architecture: str, prefix: str, other: str) -> None:
    weights = weights_of(name)
    head = "language_model.lm_head." if prefix == "language_model.model." else "lm_head."
    whole = {
        prefix + key[len("model.") :] if key.startswith("model.") else head + key[len("lm_head.") :]: value
        for key, value in weights.items()
    }
    kind = config_of(name)["model_type"].removesuffix("_text")
    config = {"architectures": [architecture], "model_type": kind, "text_config": config_of(name)}
    model = kv.models.from_weights(config, {**whole, other: np.zeros(3, np.float32)})
    assert model.fingerprint == kv.models.from_weights(config_of(name), weights).fingerprint


def fuse(weights: dict[str, Any], prefix: str, experts: int) -> dict[str, Any]:
    """Separate experts as one tensor for all, output times input."""
    fused = dict(weights)
    parts = {
        kind: [fused.pop(f"{prefix}.{index}.{kind}_proj.weight") for index in range(experts)]
        for kind in ("gate", "up", "down")
    }
    fused[f"{prefix}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(parts["gate"], parts["up"])])
    fused[f"{prefix}.down_proj"] = np.stack(parts["down"])
    return fused


@pytest.mark.parametrize("name", ["qwen3-next-experts", "qwen3-5-experts"])
def test_fused_experts_are_the_same_model(name: str) -> None:
    config, weights = config_of(name), weights_of(name)
    separate = kv.models.from_weights(config, weights)
    for layer in separate.config.expert_layers:
        weights = fuse(weights, f"model.layers.{layer}.mlp.experts", config["num_experts"])
    assert kv.models.from_weights(config, weights).fingerprint == separate.fingerprint
    narrow = f"model.layers.{separate.config.expert_layers[0]}.mlp.experts.down_proj"
    with pytest.raises(kv.errors.FormatError, match=narrow):
        kv.models.from_weights(config, {**weights, narrow: weights[narrow][:, :, 1:]})


def test_layers_that_predict_further_tokens_are_left_out() -> None:
    name = "qwen3-next-experts"
    weights = {**weights_of(name), "mtp.layers.0.self_attn.q_proj.weight": np.zeros((3, 3), np.float32)}
    kv.models.from_weights(config_of(name), weights)


# ---- experts ---------------------------------------------------------------------------------------------------------


def test_a_row_does_not_depend_on_the_rows_beside_it(tokens: Any) -> None:
    """Routing others elsewhere leaves a row bit for bit as it was."""
    name = "qwen3-next-experts"
    model = kv.models.load(GOLDENS / name, dtype="float32")
    layer = next(layer for layer in model._layers if hasattr(layer.mlp, "experts"))
    x = np.random.default_rng(3).standard_normal((40, model.config.hidden_size)).astype(np.float32)
    whole = np.asarray(layer.mlp(kv.tensor(x)))
    for rows in ([5], [0, 39], list(range(8)), list(range(10, 30))):  # routed on the device up to 8
        assert np.array_equal(np.asarray(layer.mlp(kv.tensor(x[rows]))), whole[rows])


# ---- caches ----------------------------------------------------------------------------------------------------------


def describe(monkeypatch: pytest.MonkeyPatch, name: str, **options: Any) -> list[dict[str, Any]]:
    """The arguments of the caches that a model makes."""
    made: list[dict[str, Any]] = []

    def causal(layers: Any, kv_heads: int, head_dim: int, capacity: int, **rest: Any) -> None:
        made.append({"layers": layers, "shape": (kv_heads, head_dim), "capacity": capacity, **rest})

    def recurrent(
        layers: Any, tail: int, conv: int, v_heads: int, v_dim: int, k_dim: int, capacity: int, **rest: Any
    ) -> None:
        made.append({"layers": layers, "shape": (tail, conv, v_heads, v_dim, k_dim), "capacity": capacity, **rest})

    monkeypatch.setattr(kv.models.base, "CausalCache", causal)
    monkeypatch.setattr(kv.models.states, "RecurrentCache", recurrent)
    kv.models.load(GOLDENS / name).caches(warm_up=False, **options)
    for entry in made:
        assert isinstance(entry.pop("device"), kv.Device)
    return made


def test_caches_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    full, local = describe(monkeypatch, "gemma3-window-softcap", capacity=100, window_capacity=40, memory=12)
    assert (full["layers"], full["capacity"], full["dtype"], full["shape"]) == ([2], 100, "float16", (2, 12))
    assert (full["rope"]["base"], full["rope"]["scaling"]["factor"]) == (1e6, 8.0)
    assert not {"window", "memory", "chunk"} & full.keys()
    assert (local["layers"], local["capacity"], local["window"], local["memory"]) == ([0, 1, 3, 4], 40, 9, 12)
    assert local["rope"] == {"base": 10000.0, "scaling": None}


def test_caches_of_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    full, local = describe(monkeypatch, "llama4-chunks", dtype="float32")
    assert (full["layers"], full["capacity"], full["dtype"]) == ([2], 8192, "float32")
    assert full["rope"] == NO_ROTATION
    assert (local["layers"], local["chunk"]) == ([0, 1, 3, 4], 16)
    assert local["rope"] == {"base": 500000.0, "interleaved": True, "scaling": None}


def test_caches_of_hybrids(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, states = describe(monkeypatch, "qwen3-next-experts", capacity=100, slots=20)
    assert (attention["layers"], attention["rope"]["dims"]) == ([1, 3], 4)
    assert (states["layers"], states["capacity"], states["dtype"]) == ([0, 2], 20, "float32")
    assert states["shape"] == (3, 2 * 16 + 48, 4, 12, 8)
    assert describe(monkeypatch, "qwen3-5-dense")[1]["capacity"] == 64


def test_the_rope_of_keys_that_are_not_rotated_moves_nothing() -> None:
    x = np.random.default_rng(1).standard_normal((3, 2, 12)).astype(np.float32)
    moved = kv.ops.rope(x, np.array([0, 7, 2**20], np.int32), **NO_ROTATION)
    assert np.array_equal(np.asarray(moved), x)


QUICK = ("gemma3-window-softcap", "llama4-chunks", "qwen3-next-experts")  # a window, chunks, states and experts
SOME = [name if name in QUICK else pytest.param(name, marks=pytest.mark.ci) for name in CASES]


@pytest.mark.parametrize("chunk", [pytest.param(72, marks=pytest.mark.soak), 7])
@pytest.mark.parametrize("name", SOME)
def test_logits_agree_with_transformers(name: str, chunk: int, tokens: Any) -> None:
    model = kv.models.load(GOLDENS / name, dtype="float32")
    with kv.PrefixCache(model.caches(capacity=512, dtype="float32")).begin(tokens) as session:
        logits = np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill(chunk=chunk)])
    close(logits, wanted_logits(name), LOGITS_OF_KINDS)


@pytest.mark.parametrize("name", SOME)
def test_a_branch_goes_on_as_if_computed_afresh(name: str, tokens: Any) -> None:
    """A second prompt that shares 50 tokens reuses what it can, and its logits are those of a fresh cache."""
    model = kv.models.load(GOLDENS / name, dtype="float32")
    cache = kv.PrefixCache(model.caches(capacity=512, dtype="float32"))
    other = np.concatenate([tokens[:50], tokens[:20]])
    for text in (tokens, other, other):
        with cache.begin(text) as session:
            for step in session.prefill(chunk=16):
                last = np.asarray(model(step))
    assert session.reused > 0
    fresh = logits_of(model, FakeSession(sights_of(config_of(name))), other, 70)
    close(last[0], fresh[-1], LOGITS)


@pytest.mark.parametrize("name", SOME)
def test_generates(name: str, tokens: Any) -> None:
    """Greedy tokens are those of the largest logits when everything is computed at once."""
    model = kv.models.load(GOLDENS / name, dtype="float32")
    with kv.PrefixCache(model.caches(capacity=512, dtype="float32")).begin(tokens[:40]) as session:
        for step in session.prefill():
            model(step)
        made = list(kv.generate(model, session, max_tokens=8))
    text = np.concatenate([tokens[:40], np.asarray(made, np.int32)])
    logits = logits_of(model, FakeSession(sights_of(config_of(name))), text, len(text))
    assert logits[39:-1].argmax(-1).tolist() == made
