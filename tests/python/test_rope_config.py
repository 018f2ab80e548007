"""RoPE is merged from all the places that have held it as transformers merges it, or refused by name."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import transformers

import kvtrie as kv
from bounds import LOGITS, ROPE_TABLES, close, difference, within
from config_sweep import FAMILIES, Case
from config_values import ABSENT
from reference_llama import random_llama
from rope_sweep import got_tables, ropes, wanted_tables
from test_models import all_logits

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4 + [2.0] * 4, "long_factor": [4.0] * 8}
TOKENS = np.random.default_rng(3).integers(2, 94, 30).tolist()


def rope_of(**changes: Any) -> Any:
    config, _ = random_llama(1, **changes)
    raw = {key: value for key, value in config.items() if value is not ABSENT}
    parsed = kv.models.Llama.parse_config(raw)
    return parsed.rope_theta, parsed.rope_scaling


def test_scaling_takes_the_place_of_parameters_and_says_so() -> None:
    """What model cards tell users to add for long texts, in a file that transformers 5 has saved."""
    beside = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "rope_theta": ABSENT}
    with pytest.warns(kv.errors.IgnoredWarning, match="rope_parameters has no effect beside rope_scaling"):
        theta, scaling = rope_of(**beside, rope_scaling=YARN)
    assert (theta, scaling) == rope_of(rope_theta=10000.0, rope_parameters=YARN)
    assert rope_of(**beside, rope_scaling={}) == (500.0, None)
    both = {**YARN, "rope_theta": 500.0}
    assert rope_of(rope_theta=ABSENT, rope_parameters=both, rope_scaling=both)[0] == 500.0  # and nothing is said


def test_longrope_without_a_factor_has_that_of_its_lengths() -> None:
    config, weights = random_llama(2, max_position_embeddings=128)
    written = {**LONG, "factor": 4.0, "original_max_position_embeddings": 32}
    wanted = all_logits(kv.models.from_weights({**config, "rope_scaling": written}, weights), TOKENS, 30)
    for changes in (
        {"rope_scaling": {**LONG, "original_max_position_embeddings": 32}},
        {"rope_scaling": LONG, "original_max_position_embeddings": 32},
        {"rope_scaling": {**LONG, "original_max_position_embeddings": 64}, "original_max_position_embeddings": 32},
    ):
        got = all_logits(kv.models.from_weights({**config, **changes}, weights), TOKENS, 30)
        close(got, wanted, LOGITS)
    other = {**config, "rope_scaling": {**LONG, "original_max_position_embeddings": 128}}
    assert difference(all_logits(kv.models.from_weights(other, weights), TOKENS, 30), wanted) > 100 * LOGITS.value


def test_a_type_reads_its_own_keys_only() -> None:
    linear = {"rope_type": "linear", "factor": 4.0}
    plain = rope_of(rope_scaling=linear)
    assert rope_of(rope_scaling={**linear, "attention_factor": 3.0, "beta_fast": 2}) == plain
    assert rope_of(rope_scaling={**linear, "type": "yarn"}) == plain
    assert rope_of(rope_scaling={"type": "linear", "factor": 4.0}) == plain


def test_null_of_a_share_of_heads_means_all_of_them() -> None:
    raw = FAMILIES["qwen3_next"].file
    bare = {**raw, "rope_parameters": {"rope_theta": 500.0}}
    family = kv.models.Qwen3Next
    assert family.parse_config(bare).rotary_dims == 2
    assert family.parse_config({**bare, "partial_rotary_factor": None}).rotary_dims == 8
    assert family.parse_config({**raw, "partial_rotary_factor": None}).rotary_dims == 4


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"rope_parameters": {"full_attention": YARN}}, "rope_parameters: got one per layer type"),
    ("llama", {"rope_scaling": {"rope_type": "proportional"}}, "rope_type: got 'proportional'"),
    ("llama", {"rope_scaling": {**YARN, "attention_factor": 0}}, "attention_factor: got 0"),
    ("llama", {"rope_scaling": {"rope_type": None, "factor": 2.0}}, "rope_type: got None"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": None}}, "rope_scaling: factor is missing"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "rope_scaling: low_freq_factor is missing"),
    ("llama", {"rope_scaling": [1]}, "rope_scaling: got [1], allowed an object"),
    ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling: got type 'linear'"),
    ("gemma3_text", {"rope_parameters": {"full_attention": {**YARN, "truncate": False}}}, "truncate of full_attention"),
    ("gemma3_text", {"rope_parameters": {"full_attention": YARN, "truncate": False}}, "truncate: got False"),
    ("gemma3_text", {"original_max_position_embeddings": 32}, "original_max_position_embeddings: got 32"),
]


@pytest.mark.parametrize(("family", "changes", "named"), REFUSED)
def test_what_cannot_be_merged_is_refused_by_name(
    family: str, changes: dict[str, Any], named: str, tmp_path: Any
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(Case(family, changes).file()))
    with pytest.raises((kv.errors.NotSupportedError, kv.errors.FormatError), match=re.escape(named)):
        kv.models.describe(tmp_path)


SEEDS = [
    pytest.param(0, 150),
    pytest.param(1, 2000, marks=pytest.mark.ci),
    pytest.param(2, 20_000, marks=pytest.mark.soak),
]


@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")  # of rope_parameters beside rope_scaling
@pytest.mark.parametrize(("seed", "count"), SEEDS)
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text"])
def test_tables_are_those_of_transformers(name: str, seed: int, count: int) -> None:
    """Frequencies and attention factors of random settings, where neither side refuses them."""
    random = np.random.default_rng(seed)
    kind, family = getattr(transformers, FAMILIES[name].config), kv.models._FAMILIES[name]
    wide = {"head_dim": 32} if name == "qwen3_next" else {}  # a quarter of it rotates, or all of it
    seen, worst = {"equal": 0, "refused": 0, "fails": 0}, 0.0
    for changes in ropes(random, count, name == "gemma3_text", ABSENT):
        case = Case(name, {**changes, **wide})
        try:
            got = got_tables(family, family.parse_config(case.file()))
        except (
            kv.errors.NotSupportedError,
            kv.errors.FormatError,
            ValueError,
        ):  # of the last kind: lists of another length
            seen["refused"] += 1
            continue
        try:
            wanted = wanted_tables(name, kind.from_dict(case.file()))
        except Exception:
            seen["fails"] += 1
            continue
        for ours, theirs in zip(got, wanted, strict=True):
            for numbers, wanted_numbers in zip(ours, theirs, strict=True):
                apart = difference(numbers, wanted_numbers)
                assert apart <= ROPE_TABLES.value, case
                worst = max(worst, apart)
        seen["equal"] += 1
    within(worst, ROPE_TABLES)
    assert seen["equal"] > count // 4, seen
    assert seen["fails"] < count // 8, seen
