"""A family of models is one file in models/families: what stands in it is found, read, built and computed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS, close
from kvtrie.models import families
from kvtrie.models.gguf import ARCHITECTURES
from test_models import all_logits

FILE = '''
from kvtrie.models.attention import AttentionPlan
from kvtrie.models.base import Model
from kvtrie.models.config import parse_config
from kvtrie.models.decoder import SANDWICH, LayerPlan, MlpPlan


class Sandwich(Model):
    """Norms on both sides of mixer and MLP, and over the heads of q and k."""

    family = "sandwich"
    architectures = ("SandwichForCausalLM",)

    @classmethod
    def parse_config(cls, raw, generation=None, where="config"):
        return parse_config(raw, model_type=cls.family, generation=generation, where=where)

    @classmethod
    def layer_plan(cls, config, index):
        mixer = AttentionPlan(norms=True, gated=index == 1)
        return LayerPlan(mixer, MlpPlan(config.intermediate_size), SANDWICH)
'''
RAW = {
    "architectures": ["SandwichForCausalLM"],
    "vocab_size": 31,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def test_a_new_family_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sandwich.py").write_text(FILE)
    monkeypatch.setattr(families, "__path__", [*families.__path__, str(tmp_path)])
    found = {family.family: family for family in families._found()}
    assert found.keys() == families.FAMILIES.keys() | {"sandwich"}
    monkeypatch.setitem(families.ARCHITECTURES, "SandwichForCausalLM", found["sandwich"])
    config = found["sandwich"].parse_config(RAW)
    shapes = found["sandwich"].tensor_shapes(config)
    assert shapes["model.layers.0.self_attn.q_proj.weight"] == (32, 32)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (64, 32)
    rng = np.random.default_rng(5)
    weights = {name: rng.standard_normal(shape, np.float32) / 8 for name, shape in shapes.items()}
    model = kv.models.from_weights(RAW, weights, dtype="float32")
    tokens = rng.integers(0, 31, 40).tolist()
    logits = all_logits(model, tokens, 40)
    assert logits.shape == (40, 31)
    close(all_logits(model, tokens, 7), logits, LOGITS)


DOCS = Path(__file__).parents[2] / "docs"


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def _rows() -> list[tuple[list[str], set[str]]]:
    """Of the table of docs/own_family.md: architectures of ``config.json``, and of GGUF files."""
    table = (DOCS / "own_family.md").read_text("utf-8").split("## Families\n\n")[1].split("\n\n")[0]
    cells = (line.split("|") for line in table.splitlines()[2:])
    return [(_quoted(cell[2]), {*_quoted(cell[3])}) for cell in cells]


def test_the_table_of_families_is_whole() -> None:
    """Each architecture is in one row, with those of its family's GGUF files; other families' may be beside them."""
    rows = _rows()
    assert sorted(name for names, _ in rows for name in names) == sorted(families.ARCHITECTURES)
    for names, files in rows:
        assert {each.split("/")[0] for name in names for each in families.ARCHITECTURES[name].gguf} <= files, names


def test_the_pages_name_every_architecture_of_gguf_files() -> None:
    read = {name.split("/")[0] for name in ARCHITECTURES}
    page = (DOCS / "gguf.md").read_text("utf-8")
    assert {*_quoted(re.findall(r"^\| architectures \| (.*) \|$", page, re.MULTILINE)[0])} == read
    assert {name for _, files in _rows() for name in files} == read


def test_families_are_found_by_their_class() -> None:
    for family in families.FAMILIES.values():
        assert getattr(kv.models, family.__name__) is family
    with pytest.raises(AttributeError, match="has no attribute 'Llama5'"):
        _ = kv.models.Llama5
