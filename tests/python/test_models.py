"""Logits of the dense families against Hugging Face's goldens and the float64 reference; steps; device memory."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS, REFERENCE, close, difference
from reference_llama import random_llama, reference_logits, save_checkpoint

GOLDENS = Path(__file__).parent / "goldens"
CASES = sorted(
    path.name for path in GOLDENS.iterdir() if path.name.split("-")[0] in ("llama", "llama3", "qwen2", "qwen3")
)
CASES = [name for name in CASES if not name.startswith(("qwen3-next", "qwen3-5"))]  # test_models_kinds.py


def all_logits(model: Any, tokens: Any, chunk: int) -> Any:
    """Logits [n, vocab] of a text computed alone, in steps of ``chunk`` rows."""
    with kv.PrefixCache(model.caches(capacity=512, dtype="float32")).begin(tokens) as session:
        return np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill(chunk=chunk)])


@pytest.fixture(scope="module")
def golden_tokens() -> Any:
    return np.load(GOLDENS / "tokens.npy")


@pytest.mark.parametrize("chunk", [pytest.param(72, marks=pytest.mark.soak), 7])
@pytest.mark.parametrize("name", CASES)
def test_logits_agree_with_transformers(name: str, chunk: int, golden_tokens: Any) -> None:
    model = kv.models.load(GOLDENS / name, dtype="float32")
    wanted = np.load(GOLDENS / name / "logits.npy")
    close(all_logits(model, golden_tokens, chunk), wanted, LOGITS)


@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen2-bias"])
def test_plain_weights_compute_the_same(name: str, golden_tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights as GPUs keep them: not packed, and a tied head that shares the embedding's memory."""
    monkeypatch.setattr(kv.models.base.WeightTable, "pack", lambda self, plain, **_: plain)
    model = kv.models.load(GOLDENS / name, dtype="float32")
    close(all_logits(model, golden_tokens, 72), np.load(GOLDENS / name / "logits.npy"), LOGITS)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_agrees_with_transformers(name: str, golden_tokens: Any) -> None:
    folder = GOLDENS / name
    config = json.loads((folder / "config.json").read_text())
    sources = kv.models.weights.open_folder(folder)
    weights = {key: kv.models.weights.to_float32(source.read(), source.dtype) for key, source in sources.items()}
    close(reference_logits(config, weights, golden_tokens), np.load(folder / "logits.npy"), REFERENCE)


@pytest.mark.parametrize("name", [name for name in CASES if "tied" in name or "llama" in name])
def test_stored_dtype_is_exact(name: str, golden_tokens: Any) -> None:
    """The default dtype holds the checkpoint's own values, so nothing is lost against float32."""
    model = kv.models.load(GOLDENS / name)
    stored = json.loads((GOLDENS / name / "config.json").read_text())["dtype"]
    assert model.dtype == stored
    close(all_logits(model, golden_tokens, 72), np.load(GOLDENS / name / "logits.npy"), LOGITS)


@pytest.mark.parametrize("name", ["llama-yarn-head-dim", "qwen3-norms"])
def test_bfloat16_fits_into_float16_when_asked(name: str, golden_tokens: Any) -> None:
    model = kv.models.load(GOLDENS / name, dtype="float16")
    assert model.dtype == "float16"
    close(all_logits(model, golden_tokens, 72), np.load(GOLDENS / name / "logits.npy"), LOGITS)


@pytest.mark.parametrize("name", ["llama-yarn-head-dim", "qwen2-bias"])
def test_bfloat16_has_the_bits_of_float32(name: str, golden_tokens: Any) -> None:
    kept, wide = (kv.models.load(GOLDENS / name, dtype=dtype) for dtype in (None, "float32"))
    assert set(kept.kept.values()) == {"bfloat16"} and kept.nbytes < 0.6 * wide.nbytes
    if kv.Device().kind != "gpu":  # there CLBlast multiplies float32, in another order
        np.testing.assert_array_equal(all_logits(kept, golden_tokens, 72), all_logits(wide, golden_tokens, 72))


def test_other_weights_are_rounded_to_bfloat16_when_asked() -> None:
    config, weights = random_llama(4)
    rounded = {
        name: np.asarray(kv.tensor(each, dtype="bfloat16").astype("float32")) if each.ndim > 1 else each
        for name, each in weights.items()
    }
    logits = [
        all_logits(kv.models.from_weights(config, each, dtype=dtype), [1, 2, 3], 3)
        for each, dtype in ((weights, "bfloat16"), (rounded, "bfloat16"), (weights, "float32"))
    ]
    np.testing.assert_array_equal(logits[0], logits[1])
    assert (logits[0] != logits[2]).any()
    weights["lm_head.weight"] = weights["lm_head.weight"].copy()
    weights["lm_head.weight"][2, 1] = 3.4e38
    with pytest.raises(kv.errors.ArgumentError, match=r"lm_head.weight\[2, 1\]: got 3.39"):
        kv.models.from_weights(config, weights, dtype="bfloat16")


@pytest.mark.parametrize("changed", ["rope_parameters", "attention_bias"])
def test_goldens_see_what_they_are_there_for(changed: str, golden_tokens: Any) -> None:
    """Without the scaling or the biases the logits are far off: the comparison above can fail."""
    folder = GOLDENS / "llama3-scaled-bias"
    config = json.loads((folder / "config.json").read_text())
    sources = kv.models.weights.open_folder(folder)
    weights = {name: kv.models.weights.to_float32(s.read(), s.dtype) for name, s in sources.items()}
    if changed == "rope_parameters":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    else:
        config["attention_bias"] = False
        weights = {name: value for name, value in weights.items() if not name.endswith(".bias")}
    model = kv.models.from_weights(config, weights)
    assert difference(all_logits(model, golden_tokens, 72), np.load(folder / "logits.npy")) > 100 * LOGITS.value


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_logits_agree_with_the_float64_reference(family: str) -> None:
    config, weights = random_llama(5, layers=2, hidden=48, heads=6, kv_heads=3, vocab=97, head_dim=16, family=family)
    tokens = np.random.default_rng(5).integers(0, 97, 50).astype(np.int32)
    model = kv.models.from_weights(config, weights)
    close(all_logits(model, tokens, 16), reference_logits(config, weights, tokens), REFERENCE)


def test_last_rows_of_several_sessions() -> None:
    config, weights = random_llama(6)
    model = kv.models.from_weights(config, weights)
    cache = kv.PrefixCache(model.caches(capacity=512, dtype="float32"))
    random = np.random.default_rng(6)
    texts = [random.integers(0, 128, n).astype(np.int32) for n in (9, 1, 17)]
    sessions = [cache.begin(text) for text in texts]
    logits = model(cache.batch(sessions, chunk=32))
    wanted = np.stack([reference_logits(config, weights, text)[-1] for text in texts])
    close(logits, wanted, REFERENCE)
    for session in sessions:
        session.close()


def test_last_row_equals_all_rows() -> None:
    config, weights = random_llama(7)
    model = kv.models.from_weights(config, weights)
    tokens = np.random.default_rng(7).integers(0, 128, 20).astype(np.int32)
    every = all_logits(model, tokens, 20)
    with kv.PrefixCache(model.caches(capacity=64, dtype="float32")).begin(tokens) as session:
        for step in session.prefill(chunk=20):
            last = np.asarray(model(step))
    assert (last.shape, last.dtype) == ((1, 128), np.float32)
    close(last[0], every[-1], LOGITS)


def test_some_rows_are_those_of_all_rows() -> None:
    """Of several sessions in one step, in any order; wrong numbers are refused, and the step is still open."""
    model = kv.models.from_weights(*random_llama(7))
    cache = kv.PrefixCache(model.caches(capacity=64, dtype="float32"))
    sessions = [cache.begin([3, 1, 4, 1, 5], use=False, publish=False), cache.begin([9, 2], use=False, publish=False)]
    step = cache.batch(sessions)
    for wrong in ([], [7], [-1], [0.5], [[1]], "0"):
        with pytest.raises(kv.Error, match=r"\[model\] rows: got "):
            model(step, rows=wrong)
    with pytest.raises(kv.Error, match=r"\[model\] rows: got some beside all_rows"):
        model(step, all_rows=True, rows=[1])
    some = np.asarray(model(step, rows=[4, 1, 6]))
    for session in sessions:
        session.close()
    again = [cache.begin([3, 1, 4, 1, 5], use=False, publish=False), cache.begin([9, 2], use=False, publish=False)]
    every = np.asarray(model(cache.batch(again), all_rows=True))
    np.testing.assert_array_equal(some, every[[4, 1, 6]])
    for session in again:
        session.close()
    cache.close()


def test_both_generations_of_rope_keys_mean_the_same() -> None:
    old, _ = random_llama(0, rope_scaling={"type": "linear", "factor": 4.0}, rope_theta=500.0)
    new = {k: v for k, v in old.items() if k not in ("rope_scaling", "rope_theta")}
    new["rope_parameters"] = {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}
    assert kv.models.Llama.parse_config(old) == kv.models.Llama.parse_config(new)
    assert kv.models.Llama.parse_config(old).rope_theta == 500.0


def test_fingerprint_names_the_weights(tmp_path: Path) -> None:
    config, weights = random_llama(1, dtype=np.float16)
    one = kv.models.load(save_checkpoint(tmp_path / "one", config, weights))
    shards = kv.models.load(save_checkpoint(tmp_path / "shards", config, weights, shards=3))
    assert one.fingerprint == shards.fingerprint == kv.models.from_weights(config, weights).fingerprint
    assert len(one.fingerprint) == 64
    other = {**weights, "model.norm.weight": weights["model.norm.weight"] + np.float16(0.5)}
    assert kv.models.from_weights(config, other).fingerprint != one.fingerprint
    assert kv.models.from_weights({**config, "rope_theta": 9999.0}, weights).fingerprint != one.fingerprint
    both = [kv.models.from_weights(config, weights, dtype=dtype).fingerprint for dtype in ("float16", "float32")]
    assert both[0] != both[1] and one.fingerprint == both[0]


def test_progress_reaches_its_end(tmp_path: Path) -> None:
    config, weights = random_llama(1, tied=True)
    seen: list[tuple[int, int]] = []
    model = kv.models.load(
        save_checkpoint(tmp_path, config, weights), progress=lambda done, total: seen.append((done, total))
    )
    total = sum(value.nbytes for value in weights.values())
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert model.nbytes >= total


def test_config_is_frozen_and_complete() -> None:
    config, weights = random_llama(2, tied=True)
    model = kv.models.from_weights(config, weights)
    assert (model.config.hidden_size, model.config.num_hidden_layers, model.config.tie_word_embeddings) == (64, 2, True)
    with pytest.raises(AttributeError):
        model.config.hidden_size = 1
    assert not model.has_tokenizer
    with pytest.raises(kv.errors.NotSupportedError, match="tokenizer"):
        model.tokenizer  # noqa: B018


def live_bytes(device: Any) -> int:
    """Without what the pool keeps for later use, which depends on the tests before."""
    gc.collect()
    device.trim()
    return int(device.memory()["buffer_bytes"])


def test_device_memory_goes_with_the_model() -> None:
    config, weights = random_llama(8, hidden=128, dtype=np.float16)
    device = kv.Device()
    all_logits(kv.models.from_weights(config, weights), [1, 2, 3], 3)
    before = live_bytes(device)
    for _ in range(3):
        all_logits(kv.models.from_weights(config, weights), [1, 2, 3], 3)
        assert live_bytes(device) == before
    held = [kv.models.from_weights(config, weights) for _ in range(8)]
    assert live_bytes(device) >= before + 4 * held[0].nbytes


def test_a_failed_load_leaves_nothing_on_the_device() -> None:
    config, weights = random_llama(8, hidden=128)
    device = kv.Device()
    kv.models.from_weights(config, weights, dtype="float16")
    weights["lm_head.weight"][5, 7] = 1e6  # the last tensor that is read
    before = live_bytes(device)
    for _ in range(3):
        with pytest.raises(ValueError, match="lm_head"):
            kv.models.from_weights(config, weights, dtype="float16")
        assert live_bytes(device) == before


def test_token_outside_the_vocabulary_leaves_the_session_as_it_was() -> None:
    model = kv.models.from_weights(*random_llama(4))
    with kv.PrefixCache(model.caches(capacity=64)).begin([1, 2, 128]) as session:
        with pytest.raises(ValueError, match="got token id 128, allowed 0 to 127"):
            model(next(iter(session.prefill())))
        assert session.length == 0


def test_dynamic_scaling_ends_where_k_would_depend_on_length() -> None:
    scaling = {"rope_type": "dynamic", "factor": 2.0}
    model = kv.models.from_weights(*random_llama(4, rope_scaling=scaling, max_position_embeddings=16))
    cache = kv.PrefixCache(model.caches(capacity=64))
    with cache.begin(list(range(16))) as session:
        for step in session.prefill():
            model(step)
        session.append(1)
        with pytest.raises(kv.errors.NotSupportedError, match="dynamic"):
            model(session.decode())
