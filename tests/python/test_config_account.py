"""What becomes of every key of a config.json: lists are complete, true, and quiet about files that people have."""

from __future__ import annotations

import contextlib
import json
import runpy
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import kvtrie as kv
from bounds import LOGITS, close
from config_sweep import FAMILIES, TOKENS, Case, build, tokens
from hub_configs import CONFIGS as OTHERS
from hub_configs_causal import CONFIGS as CAUSAL
from kvtrie.models.common_settings import COMMON
from kvtrie.models.settings import Settings, neutral, read, refused, setting_of, settle
from kvtrie.models.settings_table import markdown
from reference_llama import random_llama, save_checkpoint
from test_models import all_logits

NAMES = sorted(FAMILIES)
CONFIGS = {**OTHERS, **CAUSAL}


class Recording(Mapping[str, object]):
    """A configuration that writes down which of its keys are looked up."""

    def __init__(self, raw: Mapping[str, object]) -> None:
        self.raw = raw
        self.seen: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.seen.add(key)
        return self.raw[key]

    def __contains__(self, key: object) -> bool:
        self.seen.add(str(key))
        return key in self.raw

    def get(self, key: str, default: object = None) -> Any:
        self.seen.add(key)
        return self.raw.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)


LONG = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
VARIANTS: list[dict[str, Any]] = [  # which make a family look at keys that others hide
    {},
    {"layer_types": None, "moe_layers": None, "no_rope_layers": None},
    {"use_sliding_window": True, "sliding_window": 8, "layer_types": None},
    {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
    {"rope_parameters": None, "rope_scaling": {**LONG, "llama_4_scaling_beta": 0.1}},
]
BY_ARCHITECTURE = {"architectures", "model_type"}  # looked up before a family is chosen


@pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")
@pytest.mark.parametrize("name", NAMES)
def test_what_is_listed_as_read_is_looked_up_and_nothing_else_is(name: str) -> None:
    family = kv.models._FAMILIES[name]
    seen: set[str] = set()
    for changes in VARIANTS:
        raw = Recording({**FAMILIES[name].file, **changes})
        # Phi-3 has not each type of RoPE, Gemma 4's default kinds leave no cells to read.
        with contextlib.suppress(kv.errors.NotSupportedError, kv.errors.FormatError):
            family.parse_config(raw)
        seen |= raw.seen
    seen.discard("text_config")  # of a model around it
    if not family.packed:
        seen.discard("quantization_config")  # refused
    listed = {key for key, setting in family.settings.items() if setting.fate == "read"}
    assert seen | BY_ARCHITECTURE == listed


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_transformers_class_is_in_a_list(name: str) -> None:
    own = {each.name for each in fields(getattr(transformers, FAMILIES[name].config))}
    settings = kv.models._FAMILIES[name].settings
    assert not sorted(key for key in own if setting_of(key, settings) is None)


# What transformers asks a configuration for that is no key of a file: properties, methods, and marks of its classes.
NOT_KEYS = {
    "attribute_map",
    "base_config_key",
    "default_theta",
    "default_rope_type",
    "ignore_keys_at_rope_validation",
    "is_heterogeneous",
    "name_or_path",
    "sub_configs",
    "sub_configs_defaults",
    "special_attributes",
    "has_no_defaults_at_init",
    # Looked for by a decorator of all models, for those that see images.
    "vision_aspect_ratio",
    "vision_feature_layer",
    "vision_feature_select_strategy",
}


@pytest.mark.parametrize("name", ["llama", "gemma3_text", *(pytest.param(n, marks=pytest.mark.ci) for n in NAMES)])
def test_every_key_that_transformers_looks_at_is_in_a_list(name: str) -> None:
    """All that building a model and computing with and without a cache asks of its configuration."""
    asked: set[str] = set()
    base = getattr(transformers, FAMILIES[name].config)
    plain = base.__getattribute__

    def recorded(self: Any, key: str) -> Any:
        asked.add(key)
        return plain(self, key)

    model = build(Case(name, {}))
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(base, "__getattribute__", recorded)
        model = type(model)(model.config).eval()
        ids = torch.from_numpy(tokens())[None]
        begun = model(ids[:, : TOKENS - 1], use_cache=True)
        model(ids[:, TOKENS - 1 :], cache=begun.cache)
    methods = {key for key in asked if callable(getattr(base, key, None))}
    keys = {key for key in asked - methods - NOT_KEYS if not key.startswith("_")}
    settings = kv.models._FAMILIES[name].settings
    assert len(keys) > 15
    assert not sorted(key for key in keys if setting_of(key, settings) is None)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_files_of_the_hub_load_without_a_word(name: str, tmp_path: Path) -> None:
    raw, generation = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        account = kv.models.describe(tmp_path)
    assert not any(settled.unknown for settled in account.values())
    assert "num_hidden_layers" in account["config.json: text_config" if "text_config" in raw else "config.json"].read


def test_keys_that_nobody_knows_are_told_once_by_name() -> None:
    config, weights = random_llama(1)
    with pytest.warns(
        kv.errors.IgnoredWarning, match="config: nothing here knows of embedding_multiplier, zeal$"
    ) as said:
        model = kv.models.from_weights({**config, "zeal": 1, "embedding_multiplier": 2.0}, weights)
    assert len(said) == 1
    assert model.account["config.json"].unknown == {"zeal": 1, "embedding_multiplier": 2.0}
    assert model.account["config.json"].read["hidden_size"] == 64
    assert "use_cache" not in model.account["config.json"].neutral


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"is_causal": False}, "is_causal: got False, allowed True"),
        ({"sliding_window": 16}, "sliding_window: got 16, allowed nothing"),
        ({"use_sliding_window": True}, "use_sliding_window: got True, allowed False"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights"),
        ({"use_bidirectional_attention": 1}, "use_bidirectional_attention: got 1, allowed False"),
        ({"model_type": "mistral"}, "model_type: got 'mistral', allowed llama with the architecture LlamaForCausalLM"),
    ],
)
def test_what_changes_the_answer_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    config, weights = random_llama(1)
    with pytest.raises(kv.errors.NotSupportedError, match=named):
        kv.models.from_weights({**config, **changes}, weights)


def test_a_key_around_a_text_model_is_judged_as_well() -> None:
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    text = FAMILIES["gemma3_text"].raw
    family = kv.models.Gemma3
    with pytest.raises(kv.errors.NotSupportedError, match="text_config: is_causal: got False"):
        kv.models.account.settle_config(family, {**whole, "text_config": {**text, "is_causal": False}}, {}, "config")
    with pytest.raises(kv.errors.NotSupportedError, match="config: is_causal: got False"):
        kv.models.account.settle_config(family, {**whole, "text_config": text, "is_causal": False}, {}, "config")
    with pytest.warns(kv.errors.IgnoredWarning, match="config: nothing here knows of rope_scaling"):
        kv.models.account.settle_config(family, {**whole, "text_config": text, "rope_scaling": LONG}, {}, "config")


def test_a_key_goes_by_itself_before_a_pattern() -> None:
    settings: Settings = {"vision_*": refused("no eyes"), "vision_a": read("one")}
    assert settle({"vision_a": 3}, settings, "file").read == {"vision_a": 3}
    with pytest.raises(kv.errors.NotSupportedError, match=r"file: vision_b: got 4, allowed nothing: no eyes"):
        settle({"vision_b": 4}, settings, "file")
    assert COMMON["is_causal"].takes(None)


def test_the_page_says_what_the_lists_say() -> None:
    """tests/lint/settings_page.py writes it."""
    root = Path(__file__).parents[2]
    page = runpy.run_path(str(root / "tests" / "lint" / "settings_page.py"))
    assert (root / "docs" / "settings.md").read_text(encoding="utf-8") == page["page"]()


def test_rows_of_a_table_have_the_keys_of_one_fate() -> None:
    one: Settings = {"a": read("why"), "b": read("why"), "c": neutral("no", 0, "x")}
    assert markdown({"": one}).splitlines()[2:] == [
        "| `a`, `b` | read | why |",
        "| `c` | neutral: `0`, `'x'`; else refused | no |",
    ]
    lists = {"p": one, "q": {**one, "a": refused("other")}, "r": {"c": one["c"]}}
    assert [line.split(" | ")[2] for line in markdown(lists, "where").splitlines()[2:]] == [
        "p",
        "all but r",
        "all",
        "q",
    ]


# ---- stored tensors that are not used as they are --------------------------------------------------------------------

TEXT = np.random.default_rng(3).integers(0, 128, 12).tolist()
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def logits(config: Any, weights: Any) -> Any:
    return all_logits(kv.models.from_weights(config, weights), TEXT, 12)


def test_a_head_that_is_stored_is_used_whatever_the_flag_says() -> None:
    config, weights = random_llama(2)
    wanted = logits(config, weights)
    with pytest.warns(
        kv.errors.IgnoredWarning, match="tie_word_embeddings: got true, and lm_head.weight with other numbers"
    ):
        model = kv.models.from_weights({**config, "tie_word_embeddings": True}, weights)
    close(all_logits(model, TEXT, 12), wanted, LOGITS)
    assert not model.config.tie_word_embeddings
    assert model.fingerprint == kv.models.from_weights(config, weights).fingerprint


def test_a_tied_head_that_is_stored_twice_or_in_the_other_place() -> None:
    config, weights = random_llama(2, tied=True)
    model = kv.models.from_weights(config, weights)
    twice = {**weights, HEAD: weights[EMBEDDING].copy()}
    assert kv.models.from_weights(config, twice).fingerprint == model.fingerprint
    other = {HEAD if name == EMBEDDING else name: value for name, value in weights.items()}
    assert kv.models.from_weights(config, other).fingerprint == model.fingerprint


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"])
def test_stored_frequencies_are_compared(name: str) -> None:
    config, weights = random_llama(2)
    plain = (config["rope_theta"] ** (-np.arange(0, 16, 2) / 16)).astype(np.float16)
    wanted = kv.models.from_weights(config, weights).fingerprint
    assert kv.models.from_weights(config, {**weights, name: plain}).fingerprint == wanted
    with pytest.warns(kv.errors.IgnoredWarning, match="inv_freq holds other frequencies than the configuration says"):
        model = kv.models.from_weights(config, {**weights, name: plain * np.float16(0.5)})
    assert model.fingerprint == wanted
    with pytest.raises(kv.errors.FormatError, match=r"inv_freq: got F32 \[2, 2\], allowed \[n\]"):
        kv.models.from_weights(config, {**weights, name: np.zeros((2, 2), np.float32)})


def test_one_file_comes_before_shards_and_every_tensor_of_a_shard_counts(tmp_path: Path) -> None:
    config, weights = random_llama(2)
    folder = save_checkpoint(tmp_path / "shards", config, weights, shards=3)
    other = save_checkpoint(tmp_path / "other", config, {**weights, HEAD: weights[HEAD] * 2})
    fingerprint = kv.models.load(other).fingerprint
    shutil.copy(folder / "model.safetensors.index.json", other)
    with pytest.warns(kv.errors.IgnoredWarning, match=r"index.json has no effect beside model.safetensors"):
        assert kv.models.load(other).fingerprint == fingerprint
    last = folder / "model-00003-of-00003.safetensors"
    save_file({**load_file(last), "lm_head.weight_scale": np.ones(1, np.float32)}, last)
    with pytest.raises(
        kv.errors.FormatError, match=r"00003.*'lm_head.weight_scale' is there, model.safetensors.index.json"
    ):
        kv.models.load(folder)


@pytest.mark.parametrize("extra", ["model.layers.0.self_attn.q_proj.bias", "model.vision_tower.x", "mtp.fc.weight"])
def test_a_tensor_that_no_rule_names_is_refused(extra: str) -> None:
    config, weights = random_llama(2)
    with pytest.raises(kv.errors.FormatError, match=f"1 tensors the model has no use for: {extra}"):
        kv.models.from_weights(config, {**weights, extra: np.zeros(4, np.float32)})
