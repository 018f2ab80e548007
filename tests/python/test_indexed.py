"""The choice of keys of DeepSeek-V3.2 and GLM-5: no near tie decides the other tests, and all keys are all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bounds import FLOAT32, LOGITS, close
from checkpoint_variants import VARIANTS
from config_sweep import TOKENS, Case, build, computed, save, tokens

NAMES = [name for name in VARIANTS if name.startswith(("deepseek_v32", "glm_moe_dsa"))]
# Of the largest score: 64 roundings, the sums of two layers and of an index below it
NEAR = 64 * FLOAT32


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.ci) for name in NAMES])
def test_no_near_tie_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In transformers, between the last score that is chosen and the next, of every row that chooses."""
    case = Case(VARIANTS[name].family, VARIANTS[name].changes)
    model, gaps, topk = build(case), [], torch.Tensor.topk
    most = model.config.index_topk

    def watched(self: torch.Tensor, k: int, *rest: Any, **options: Any) -> Any:
        if k == most and self.shape[-1] == TOKENS:
            best = topk(self, k + 1, dim=-1).values[0]
            rows = best[torch.isfinite(best).all(-1)]
            gaps.append(((rows[:, -2] - rows[:, -1]) / rows.abs().amax(-1)).numpy())
        return topk(self, k, *rest, **options)

    monkeypatch.setattr(torch.Tensor, "topk", watched)
    with torch.no_grad():
        model(torch.from_numpy(tokens())[None], use_cache=False)
    kinds = getattr(model.config, "indexer_types", ["full"] * model.config.num_hidden_layers)
    assert len(gaps) == kinds.count("full")
    assert all(len(each) == TOKENS - most for each in gaps)
    assert np.concatenate(gaps).min() > NEAR


def test_all_keys_are_full_attention(tmp_path: Path) -> None:
    """A text within ``index_topk`` has the logits of DeepSeek-V3 with the same weights; one key more changes no bit."""
    found = []
    for most in (TOKENS, TOKENS + 1):
        case = Case("deepseek_v32", {"index_topk": most})
        save(build(case), case.file(), tmp_path / str(most))
        found.append(computed(tmp_path / str(most)))
    np.testing.assert_array_equal(*found)
    with torch.no_grad():
        full = build(Case("deepseek_v3", {}))(torch.from_numpy(tokens())[None], use_cache=False).logits[0].numpy()
    close(found[0], full, LOGITS)
