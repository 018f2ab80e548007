"""No setting is silently wrong: models with one or two settings changed, against transformers (config_sweep.py)."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import kvtrie as kv
from bounds import LOGITS_OF_SETTINGS, close, difference
from config_sweep import FAMILIES, Case, build, cases_of, computed, outcome, pairs_of, save, wanted
from kvtrie.models.settings import neutral
from sweep_families import CAUSAL

sys.path.append(str(Path(__file__).parents[1] / "campaign"))

import configs

NAMES = sorted(FAMILIES)


def play(cases: list[Case]) -> Counter[str]:
    found: Counter[str] = Counter()
    for case in cases:
        what, seen = outcome(case)
        assert what != "wrong", f"{case}: {seen}"
        found[what] += 1
    return found


def drawn(name: str, count: int, seed: int) -> list[Case]:
    cases = cases_of(FAMILIES[name])
    random = np.random.default_rng([seed, NAMES.index(name)])
    return [cases[i] for i in random.choice(len(cases), count, replace=False)]


def test_the_table_of_the_page_is_one_of_its_command() -> None:
    """Each row is a family's, in their order, its counts add up, and nothing was wrong."""
    page = configs.PAGE.read_text(encoding="utf-8")
    assert configs.renewed(page, {}) == page
    assert all(found["wrong"] == 0 and found["equal"] > 0 for found in configs.written(page).values())
    changed = configs.renewed(page, {"llama": Counter(equal=1, refused=2)})
    assert "| llama | 3 | 1 | 0 | 2 | 0 | 0 |\n" in changed and configs.renewed(changed, configs.written(page)) == page


def test_a_few_of_three_families() -> None:
    """Others have the same kinds of layers; transformers takes half a second to import each."""
    cases = [case for name in ("llama", "gemma3_text", "qwen3_5_moe_text") for case in drawn(name, 8, seed=1)]
    found = play(cases)
    assert found["fails"] < len(cases) // 4
    assert min(found["equal"], found["neutral"], found["refused"]) > 0


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
def test_a_sample_of_each_family(name: str) -> None:
    """tests/campaign/configs.py plays every setting of each, 20,000 models."""
    count = 6 if name in CAUSAL else 12
    play([*drawn(name, count, seed=2), *pairs_of(FAMILIES[name], count // 3, seed=2)])


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_every_setting_and_many_pairs(name: str) -> None:
    """Some 3,000 models with those of the other families; tests/campaign/configs.py counts them by outcome."""
    play([*cases_of(FAMILIES[name], more_ropes=60), *pairs_of(FAMILIES[name], 140)])


_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
WINDOWS: list[dict[str, Any]] = [
    {"use_sliding_window": True},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 8, "layer_types": _MIXED},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": None, "layer_types": _MIXED},
    {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 1},
    {"use_sliding_window": False, "sliding_window": 8, "layer_types": _MIXED},
    {"sliding_window": 8, "max_window_layers": 9},
]


SWITCHED = ["qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "dots1"]


@pytest.mark.parametrize("name", ["qwen2", *(pytest.param(name, marks=pytest.mark.ci) for name in SWITCHED)])
def test_windows_are_those_that_are_switched_on(name: str) -> None:
    found = play([Case(name, changes) for changes in WINDOWS])
    assert found["equal"] >= 2
    plain = wanted(build(Case(name, {})))
    assert difference(plain, wanted(build(Case(name, WINDOWS[1])))) > 100 * LOGITS_OF_SETTINGS.value


ALL = ["llama", "gemma3_text", *(pytest.param(name, marks=pytest.mark.ci) for name in NAMES)]


@pytest.mark.parametrize("name", ALL)
def test_a_stored_head_is_used_as_transformers_uses_it(name: str, tmp_path: Path) -> None:
    """A fine-tune whose head is no longer the embedding, and whose flag still says so."""
    case = Case(name, {})
    save(build(case), {**case.file(), "tie_word_embeddings": True}, tmp_path)
    kind = getattr(transformers, FAMILIES[name].architecture)
    close(computed(tmp_path), wanted(kind.from_pretrained(tmp_path, dtype=torch.float32).eval()), LOGITS_OF_SETTINGS)


ACTS: list[tuple[str, dict[str, Any]]] = [  # what transformers acts on and is not computed here
    ("llama", {"is_causal": False}),
    ("llama", {"sliding_window": 8}),
    ("gemma3_text", {"use_bidirectional_attention": True}),
]


@pytest.mark.parametrize(("name", "changes"), ACTS)
def test_the_sweep_sees_what_a_list_is_wrong_about(
    name: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    family = kv.models._FAMILIES[name]
    blind = {**family.settings, **dict.fromkeys(changes, neutral("nobody looks"))}
    monkeypatch.setattr(family, "settings", blind)
    assert outcome(Case(name, changes))[0] == "wrong"


def test_the_sweep_sees_a_scaling_that_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}})
    assert outcome(case)[0] == "equal"
    plain = kv.models.Llama.parse_config
    monkeypatch.setattr(
        kv.models.Llama,
        "parse_config",
        lambda raw, *rest: plain({key: value for key, value in raw.items() if key != "rope_scaling"}, *rest),
    )
    assert outcome(case)[0] == "wrong"
