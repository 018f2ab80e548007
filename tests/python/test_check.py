"""``python -m kvtrie check MODEL``: what became of each key, what a template reads, and the logits of transformers."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_models as hf
import kvtrie as kv
from kvtrie.cli import main
from kvtrie.models import compared

TINY = Path(__file__).parents[2] / "examples" / "tiny"


def check(*arguments: str) -> tuple[int, dict[str, list[str]]]:
    """The exit code, and the lines by what they are about."""
    out = io.StringIO()
    code = main(["check", *arguments], out)
    lines: dict[str, list[str]] = {}
    for line in out.getvalue().splitlines():
        title, _, text = line.partition(" ")
        lines.setdefault(title, []).append(text.strip())
    return code, lines


def changed(place: Path, **keys: Any) -> str:
    """The tiny model with a configuration that says something else."""
    shutil.copytree(TINY, place / "model")
    path = place / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))
    return str(path.parent)


def test_the_tiny_model() -> None:
    code, lines = check("tiny")
    assert code == 0
    assert "Llama: " in lines["model"][0]
    read, neutral = lines["read"][0], lines["neutral"][0]
    assert read.startswith("config.json: ") and "rope_" in read and "torch_dtype" not in read
    assert "initializer_range" in neutral or "use_cache" in neutral
    assert "tokens; texts begin with" in lines["tokenizer"][0]
    assert any(line.startswith("default: ") for line in lines["template"])
    assert lines["logits"][0].startswith("those of transformers: ")
    assert "unknown" not in lines and "told" not in lines


def test_what_nothing_knows_is_told(tmp_path: Path) -> None:
    code, lines = check(changed(tmp_path, utterly_new=1), "--no-compare")
    assert code == 0 and "logits" not in lines
    assert lines["unknown"] == ["config.json: utterly_new"] and "utterly_new" in lines["told"][0]


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = check(changed(tmp_path, is_causal=False))
    assert code == 1 and not lines and "is_causal" in capsys.readouterr().err


def test_other_logits_than_those_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    own = compared._own
    monkeypatch.setattr(compared, "_own", lambda model, ids: own(model, ids)[:, ::-1])
    code, lines = check("tiny")
    assert code == 1 and lines["logits"][0].startswith("NOT those of transformers: ")


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared.importlib.util, "find_spec", lambda name: None)
    code, lines = check("tiny", "--text", "a")
    assert code == 0 and lines["logits"] == ["not compared: torch and transformers are not installed"]


def test_what_transformers_cannot_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, ids: list[int]) -> Any:
        raise ValueError("what is this?\nmore")

    monkeypatch.setattr(compared, "_of_transformers", broken)
    code, lines = check("tiny")
    assert code == 0 and lines["logits"] == ["not compared: transformers cannot load it: what is this?"]


@pytest.mark.parametrize("name", ["gemma3", "qwen3_5"])
def test_a_model_without_a_tokenizer(name: str, tmp_path: Path) -> None:
    hf.tiny(name).save_pretrained(tmp_path)
    code, lines = check(str(tmp_path))
    assert code == 0 and lines["tokenizer"] == ["none: token ids work without"], lines
    assert lines["logits"][0].startswith("those of transformers: ")


def test_a_difference_that_is_not_finite_is_never_right() -> None:
    rows = np.ones((2, 3), np.float32)
    for other in (np.full((2, 3), np.nan, np.float32), np.ones((2, 4), np.float32)):
        found = compared.difference(other, rows, 1.0)
        assert not found.is_right and found.largest == float("inf")
    assert compared.difference(rows, rows, 0.0) == compared.Difference(2, 2, 0.0, 0.0)
    assert kv.models.compared is compared
