"""What bench_gguf_quality.py measures with: a padded model is the same function, sums are what they are called."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

import kvtrie as kv
from bounds import REFERENCE, close
from reference_llama import random_llama, reference_logits

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import bench_gguf_quality as quality


def test_a_padded_model_is_the_same_function(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, weights = random_llama(3, layers=2, hidden=72, heads=3, kv_heads=1, head_dim=24, vocab=50, tied=True)
    config = kv.models.from_weights(raw, weights).config
    monkeypatch.setattr(quality, "WIDTH", 128)
    monkeypatch.setattr(quality, "HEADS", (6, 2))
    padded = quality.padded(quality.Checkpoint(config, weights))
    assert padded.weights["model.layers.0.self_attn.o_proj.weight"].shape == (128, 6 * 24)
    tokens = list(range(20))
    wanted = reference_logits(raw, weights, tokens)
    found = reference_logits(dataclasses.asdict(padded.config), padded.weights, tokens)
    close(found, wanted, REFERENCE)


def test_sums_are_what_they_are_called() -> None:
    """Two positions of three tokens, the second without a token after it."""
    exact = quality.Exact(np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]) - 3)
    same, other = quality.Sums(), quality.Sums()
    same.add(exact, np.log([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]) + 7, np.array([1]))
    other.add(exact, np.log([[0.25, 0.5, 0.25], [0.1, 0.8, 0.1]]), np.array([1]))
    assert same.kl == pytest.approx(0, abs=1e-12) and same.agreement == 1
    assert same.perplexity == pytest.approx(4) and other.perplexity == pytest.approx(2)
    assert other.worst == pytest.approx(0.5 * np.log(2) - 0.25 * np.log(2))
    assert other.kl == pytest.approx(other.worst / 2) and other.agreement == 0.5
