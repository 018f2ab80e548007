"""``kv.quality`` and its command: figures beside transformers' and numpy's, what is compared with what, memory."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hf_models as hf
import kvtrie as kv
from gguf_files import write
from kvtrie import _divergence
from kvtrie.cli import main
from kvtrie.quality import shipped_text
from random_models import VOCAB, random_model
from reference_llama import random_llama
from serving import TINY

CONTEXT = 48
quality_module: Any = sys.modules["kvtrie.quality"]


def ids(count: int, most: int = VOCAB, seed: int = 3) -> list[int]:
    return list(np.random.default_rng(seed).integers(1, most, count))


# ---- the figures -----------------------------------------------------------------------------------------------------


MORE = [pytest.param(name, marks=pytest.mark.ci) for name in ("gemma3", "qwen3_5", "qwen3")]


@pytest.mark.parametrize("name", ["llama", *MORE])
def test_the_perplexity_is_the_one_of_transformers(name: str, tmp_path: Path) -> None:
    """Windows that begin anew, of each the second half."""
    model = hf.tiny(name)
    model.save_pretrained(tmp_path)
    text = ids(3 * CONTEXT + 5, hf.PAD)
    found = kv.quality(tmp_path, text, dtypes=["stored"], kv_dtypes=["float32"], context=CONTEXT)
    surprise: list[float] = []
    for window in torch.tensor(text[: 3 * CONTEXT]).reshape(3, CONTEXT):
        with torch.no_grad():
            logits = model(window[None], use_cache=False).logits[0].double()
        rows = torch.log_softmax(logits, -1)
        surprise += [-float(rows[at - 1, window[at]]) for at in range(CONTEXT // 2 + 1, CONTEXT)]
    assert (found.windows, found.positions, found.formats) == (3, len(surprise), ())
    assert found.reference.perplexity == pytest.approx(math.exp(np.mean(surprise)), rel=1e-4)
    assert (found.reference.kl, found.reference.agreement, found.reference.perplexity_change) == (0.0, 1.0, 0.0)


def test_sums_are_those_of_the_whole_text() -> None:
    random = np.random.default_rng(5)
    exact, own = (random.normal(size=(100, 31)).astype(np.float32) for _ in range(2))
    exact[3, 4] = -np.inf  # what the reference excludes
    came = random.integers(5, 31, 100).astype(np.int32)
    sums, reference = _divergence.Sums(), _divergence.Sums()
    for begin, end in ((0, 7), (7, 8), (8, 100)):
        sums.add(exact[begin:end], own[begin:end], came[begin:end])
        reference.add(exact[begin:end], exact[begin:end], came[begin:end])
    p, q = (np.exp(x.astype(np.float64)) / np.exp(x.astype(np.float64)).sum(1, keepdims=True) for x in (exact, own))
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.nansum(p * np.log(p / q), 1)
    surprise = -np.log(q[np.arange(100), came])
    before = -np.log(p[np.arange(100), came])
    assert np.allclose(sums.divergence, kl, rtol=1e-9) and sums.positions == 100
    assert (
        sums.tail() == pytest.approx(np.quantile(kl, 0.999)) and sums.agreement == (p.argmax(1) == q.argmax(1)).mean()
    )
    assert sums.perplexity == pytest.approx(math.exp(surprise.mean()))
    change, error = sums.change(reference)
    assert change == pytest.approx(math.exp(surprise.mean()) - math.exp(before.mean()))
    assert error == pytest.approx(math.exp(before.mean()) * (surprise - before).std(ddof=1) / 10)
    assert not reference.divergence.any() and reference.agreement == 1.0


def test_a_token_that_was_impossible() -> None:
    sums = _divergence.Sums()
    row = np.array([[0.0, -np.inf]], np.float32)
    sums.add(np.zeros((1, 2), np.float32), row, np.array([1], np.int32))
    assert sums.perplexity == math.inf and sums.divergence[0] == math.inf


# ---- formats ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny() -> Any:
    return kv.quality(TINY, dtypes=["stored", "float16", "q8_0"], kv_dtypes=["float16"], context=128, windows=2)


def test_formats_stand_beside_the_reference(tiny: kv.results.Quality) -> None:
    assert (tiny.reference.dtype, tiny.reference.kv_dtype) == ("float16", "float32")  # as the file has them
    assert [(each.dtype, each.kv_dtype) for each in tiny.formats] == [("float16", "float16"), ("q8_0", "float16")]
    assert 0 < tiny.formats[0].kl < tiny.formats[1].kl


@pytest.mark.ci  # compiles for each pair
def test_every_pair_of_formats_beside_the_reference() -> None:
    tiny = kv.quality(TINY, dtypes=["stored", "float16", "q8_0", "q4_0"], context=128, windows=2)
    reference = tiny.reference
    assert (reference.dtype, reference.kv_dtype) == ("float16", "float32")  # as the file has them
    pairs = [(each.dtype, each.kv_dtype) for each in tiny.formats]
    assert pairs == [
        *(("float16", cells) for cells in ("float16", "q8_0", "q4h")),  # once, though "stored" is the same
        *(("q8_0", cells) for cells in ("float32", "float16", "q8_0", "q4h")),
        *(("q4_0", cells) for cells in ("float32", "float16", "q8_0", "q4h")),
    ]
    half, small, smaller, eighth = tiny.formats[:4]
    fourth = tiny.formats[8]
    assert 4 * 32 * small.token_bytes == 34 * reference.token_bytes
    assert 4 * 32 * smaller.token_bytes == 18 * reference.token_bytes
    assert half.kl < small.kl < min(smaller.kl, fourth.kl)
    assert 0 < half.kl < eighth.kl < fourth.kl and half.kl_tail < eighth.kl_tail < fourth.kl_tail
    assert 2 * half.token_bytes == reference.token_bytes == eighth.token_bytes
    assert reference.weight_bytes == half.weight_bytes > eighth.weight_bytes > fourth.weight_bytes
    assert all(each.perplexity == reference.perplexity + each.perplexity_change for each in tiny.formats)
    assert all(each.kl <= each.kl_tail and each.prompt_speed > 0 < each.step_speed for each in tiny.formats)


def test_pairs_of_formats_stand_beside_the_others() -> None:
    names = ["q8_0", ("q8_0", "q4h"), "q4h"]
    found = kv.quality(TINY, dtypes=["stored"], kv_dtypes=names, context=128, windows=1).formats
    assert [each.kv_dtype for each in found] == ["q8_0", "q8_0/q4h", "q4h"]
    assert found[0].kl < found[1].kl < found[2].kl
    assert 2 * found[1].token_bytes == found[0].token_bytes + found[2].token_bytes


@pytest.mark.ci  # compiles for each precision
def test_what_integer_units_lose_is_a_row_of_its_own(tmp_path: Path) -> None:
    """Products of blocks: the reference's are in float32 on every processor."""
    raw, weights = random_llama(5, hidden=64)
    path = write(kv.models.from_weights(raw, weights).config, weights, tmp_path / "blocks.gguf", "q8_0")
    units = kv.ops.integer_units()
    options: dict[str, Any] = {"dtypes": ["stored"], "kv_dtypes": ["float32", "float16"], "context": CONTEXT}
    text = ids(2 * CONTEXT, raw["vocab_size"])
    found, exact = kv.quality(path, text, **options), kv.quality(path, text, **options, precision="exact")
    assert found.integer_units == units and found.reference.precision == exact.reference.precision == "exact"
    assert exact.reference.perplexity == found.reference.perplexity
    assert [(each.kv_dtype, each.precision) for each in exact.formats] == [("float16", "exact")]
    cells = ["float16"] if units == "none" else ["float32", "float16"]
    assert [each.kv_dtype for each in found.formats] == cells
    if units != "none":
        assert 0 < found.formats[0].kl < 1e-4 and found.formats[0].precision == "auto"
        assert f"multiply blocks of weights by integer units ({units})" in str(found)
        fast = kv.quality(path, text, **options, precision="fast")
        assert found.formats[0].kl < fast.formats[0].kl < 1e-2 and fast.formats[0].precision == "fast"
        assert f"by integer units ({units}), activations in 8 bits" in str(fast)
    assert "integer units" not in str(exact)


def test_a_loaded_model_is_compared_in_its_own_weights() -> None:
    model = random_model("hybrid")
    done: list[tuple[int, int]] = []
    found = kv.quality(model, ids(2 * CONTEXT), context=CONTEXT, progress=lambda *at: done.append(at))
    assert [(each.dtype, each.kv_dtype) for each in found.formats] == [("float32", "float16")]
    assert done == [(1, 2), (2, 2)]


def test_the_table_and_the_plot(tiny: kv.results.Quality, tmp_path: Path) -> None:
    header, *lines = str(tiny).splitlines()
    assert header.split()[:2] == ["weights", "K"] and lines[0].split()[:4] == ["float16", "float32", "-", "-"]
    assert [line.split()[:2] for line in lines[1 : 1 + len(tiny.formats)]] == [
        [each.dtype, each.kv_dtype] for each in tiny.formats
    ]
    assert "2 windows of 128 tokens" in str(tiny)
    tiny.plot(tmp_path / "found.svg")
    assert "<svg" in (tmp_path / "found.svg").read_text()
    with pytest.raises(kv.errors.ArgumentError, match=r"plot: got .*found\.unknown"):
        tiny.plot(tmp_path / "found.unknown")


def test_a_plot_without_matplotlib(tiny: kv.results.Quality, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(kv.errors.NotSupportedError, match="pip install matplotlib"):
        tiny.plot(tmp_path / "found.svg")


# ---- windows and memory ----------------------------------------------------------------------------------------------


def test_logits_are_held_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the pieces change no figure."""
    model, text = random_model("dense"), ids(2 * CONTEXT)
    whole = kv.quality(model, text, context=CONTEXT)
    shapes: list[tuple[int, ...]] = []
    add = _divergence.Sums.add

    def watched(sums: Any, reference: Any, own: Any, came: Any) -> None:
        shapes.append(own.shape)
        add(sums, reference, own, came)

    monkeypatch.setattr(_divergence.Sums, "add", watched)
    monkeypatch.setattr(quality_module, "_LOGITS", 4 * VOCAB * 5)
    pieces = kv.quality(model, text, context=CONTEXT)
    assert {shape[0] for shape in shapes} == {5, (CONTEXT // 2 - 1) % 5}
    named = ("kl", "kl_tail", "perplexity", "agreement")
    for one, other in zip((whole.reference, *whole.formats), (pieces.reference, *pieces.formats)):
        for name in named:
            assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-3, abs=1e-9)


def test_each_window_begins_as_a_text_does(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = kv.models.load(TINY)
    tokens = list(range(100, 130))
    assert quality_module._windows(model, tokens, 8, None).tolist() == [tokens[at : at + 8] for at in (0, 8, 16)]
    model.tokenizer.ends = ([7], [])
    found = quality_module._windows(model, tokens, 8, 2)
    assert found.tolist() == [[7, *tokens[1:8]], [7, *tokens[9:16]]]


def test_what_is_refused() -> None:
    model = random_model("dense")
    text = ids(CONTEXT)
    for arguments, said in (
        ({"text": text[:-1]}, r"\[quality\] text: got 47 tokens, allowed 48 or more"),
        ({"context": 3}, r"context: got 3, allowed at least 4"),
        ({"context": 10**6}, r"context: got 1000000, allowed 4 to 32768"),
        ({"windows": 0}, r"windows: got 0"),
        ({"dtypes": ["q8_0"]}, r"dtypes: got some with a loaded model"),
        ({"kv_dtypes": []}, r"kv_dtypes: got 0 names"),
        (
            {"kv_dtypes": ["q3"]},
            r"kv_dtypes: got 'q3', allowed float32, float16, q8_0, q4h, or two of them for K and V",
        ),
        ({"kv_dtypes": [("q8_0", "q3")]}, r"kv_dtypes: got 'q8_0/q3', allowed float32"),
        ({"kv_dtypes": [("q8_0",)]}, r"kv_dtypes: got 1 formats, allowed one, or two for K and V"),
    ):
        with pytest.raises(kv.errors.ArgumentError, match=said):
            kv.quality(model, **{"text": text, "context": CONTEXT, **arguments})
    for wrong in ({"model": 5}, {"kv_dtypes": "float16"}, {"kv_dtypes": [3]}, {"progress": 1}):
        with pytest.raises(kv.errors.ArgumentTypeError, match=next(iter(wrong))):
            kv.quality(**{"model": model, "text": text, "context": CONTEXT, **wrong})
    with pytest.raises(kv.errors.ArgumentError, match="q3_0"):
        kv.quality(TINY, text, dtypes=["q3_0"], context=CONTEXT)


# ---- the command -----------------------------------------------------------------------------------------------------


def run(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    return main(["quality", *arguments], out), out.getvalue()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, plot = tmp_path / "text.txt", tmp_path / "plot.png"
    text.write_text(shipped_text()[:4000], encoding="utf-8")
    options = ("tiny", str(text), "--dtype", "stored", "-c", "64", "--windows", "2")
    code, shown = run(*options, "--plot", str(plot))
    assert code == 0 and "2 windows of 64 tokens" in shown and plot.read_bytes().startswith(b"\x89PNG")
    code, shown = run(*options, "--json", "--kv-dtype", "float16")
    found = json.loads(shown)
    assert code == 0 and [each["kv_dtype"] for each in found["formats"]] == ["float16"]
    assert set(found) == {field.name for field in dataclasses.fields(kv.results.Quality)}
    assert run("tiny", str(tmp_path / "none"))[0] == 1
    assert "[quality] TEXT: got" in capsys.readouterr().err


def test_the_shipped_text_is_a_text() -> None:
    assert 30_000 < len(shipped_text()) < 40_000 and shipped_text().startswith("# ")
