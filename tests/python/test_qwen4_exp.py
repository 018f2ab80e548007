"""Qwen4-Exp: n-grams are those of transformers, blocks are chosen by more than rounding, and paths decide alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen4ExpTextConfig
from transformers.models.qwen4_exp.modeling_qwen4_exp import Qwen4ExpTextNGramEmbedding, Qwen4ExpTextQSAIndexer

import kvtrie as kv
from bounds import FLOAT32, LOGITS, close
from checkpoint_variants import VARIANTS
from config_sweep import TOKENS, Case, build, computed, save, tokens
from kvtrie.models.families.qwen4_exp import Qwen4Exp
from kvtrie.models.ngrams import with_context

NAMES = [name for name in VARIANTS if name.startswith("qwen4_exp")]
FAMILY = "qwen4_exp_text"
# Of the largest score: 64 roundings, the sums of two layers and of an index below it
NEAR = 64 * FLOAT32
pytestmark = pytest.mark.filterwarnings("ignore::kvtrie.errors.IgnoredWarning")


def saved(folder: Path, changes: dict[str, Any] | None = None) -> Any:
    """transformers' model, which now lies in ``folder``, too."""
    case = Case(FAMILY, changes or {})
    model = build(case)
    save(model, case.file(), folder)
    return model


def loaded(folder: Path) -> Any:
    return kv.models.load(folder, dtype="float32")


def cache_of(model: Any) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=256, dtype="float32", warm_up=False))


# ---- n-grams ---------------------------------------------------------------------------------------------------------


class _Session:
    def __init__(self, written: Any) -> None:
        self.tokens = written


class _Step:
    """One session whose rows are the last of ``written``."""

    def __init__(self, written: Any, first: int) -> None:
        self.positions = np.arange(first, written.size)
        self.sequences = np.zeros(self.positions.size, np.int32)
        self.sessions = [_Session(written[:first])]


@pytest.mark.parametrize(("size", "heads", "least"), [(2, 3, 2), (3, 2, 50), (5, 1, 1), (3, 8, 20_000_000)])
def test_rows_of_n_grams_are_those_of_transformers(size: int, heads: int, least: int) -> None:
    """Of texts with ends of text among them, from the first token and from a later one."""
    sizes = {"ngram_size": size, "heads_per_ngram": heads, "ple_embed_dim": 96 * (size - 1)}
    raw = Case(FAMILY, {**sizes, "ngram_vocab_size_base": least}).file()
    config = Qwen4Exp.parse_config(raw)
    random = np.random.default_rng(size)
    for number, layer in enumerate(config.ngrams.ngrams.layers):
        table = config.ngrams.ngrams.table(layer, config.vocab_size)
        theirs = _embedding(raw, layer, number)
        assert table.rows == theirs.ngram_embedding.num_embeddings
        assert table.primes == tuple(theirs.ngram_heads_vocab_sizes.tolist())
        assert table.offsets == tuple(theirs.ngram_heads_offsets.tolist())
        assert table.multipliers == tuple(theirs.layer_multipliers.tolist())
        text = np.where(random.random(60) < 0.2, raw["eos_token_id"], random.integers(0, raw["vocab_size"], 60))
        wanted = _looked_up(theirs, text)
        for first in (0, 1, size - 1, 37, 59):
            context = with_context(_Step(text, first), text[first:], size, config.ngrams.ngrams.end)
            np.testing.assert_array_equal(table.ids(context), wanted[first:])


def _embedding(raw: dict[str, Any], layer: int, number: int) -> Any:
    """transformers' module without its table."""
    config = Qwen4ExpTextConfig.from_dict(raw)
    with torch.device("meta"):
        shape = Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer, number).ngram_embedding.num_embeddings
    small, torch.nn.Embedding = torch.nn.Embedding, lambda *_: _Rows(shape)  # type: ignore[misc, assignment]
    try:
        return Qwen4ExpTextNGramEmbedding(config, config.ple_embed_dim, layer, number)
    finally:
        torch.nn.Embedding = small  # type: ignore[misc]


class _Rows(torch.nn.Module):
    """A table that gives the numbers of rows."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.num_embeddings = count
        self.weight = torch.zeros(1)

    def forward(self, ids: Any) -> Any:
        return ids[..., None]


def _looked_up(module: Any, text: Any) -> Any:
    return module(torch.from_numpy(text)[None], None)[0].numpy()


@pytest.mark.ci
def test_rows_of_sessions_in_a_batch_have_contexts_of_their_own(tmp_path: Path) -> None:
    """Branches of one path and another text, one token each, against whole texts."""
    saved(tmp_path)
    model, text = loaded(tmp_path), tokens().tolist()
    with cache_of(model) as cache:
        with cache.begin(text) as session:
            for step in session.prefill(chunk=11):
                model(step)
        texts = [[*text[:30], 9], [*text, 8], [5, 7]]
        sessions = [cache.begin(each) for each in texts]
        for session, each in zip(sessions, texts):
            for step in session.prefill(chunk=3):
                model(step)
            session.append([each[-1] + 1])
        got = np.asarray(model(cache.batch(sessions)))
    for each, own in zip(texts, got):
        with cache_of(model) as cache, cache.begin([*each, each[-1] + 1]) as session:
            whole = [np.asarray(model(step, all_rows=True)) for step in session.prefill()]
        np.testing.assert_array_equal(own, np.concatenate(whole)[-1])


@pytest.mark.ci
@pytest.mark.parametrize("tree", [False, True])
def test_drafts_have_the_bits_of_single_tokens(tree: bool, tmp_path: Path) -> None:
    """A line of drafts, and a tree of two paths that part behind the first token."""
    saved(tmp_path)
    model, text, paths = loaded(tmp_path), tokens().tolist(), [[4, 5, 6], [4, 9]]
    with cache_of(model) as cache, cache.begin(text) as session:
        for step in session.prefill(chunk=7):
            model(step)
        session.append([3])
        step = session.propose_tree(paths) if tree else session.propose(paths[0])
        rows, sequences, positions = np.asarray(model(step, all_rows=True)), step.sequences, step.positions
    for number, path in enumerate(paths if tree else paths[:1]):
        with cache_of(model) as cache, cache.begin([*text, 3, *path]) as session:
            wanted = np.concatenate([np.asarray(model(step, all_rows=True)) for step in session.prefill(chunk=1)])
        own = np.flatnonzero(sequences == number)
        np.testing.assert_array_equal(rows[own], wanted[positions[own]])


def test_other_hashes_are_refused(tmp_path: Path) -> None:
    model = saved(tmp_path)
    with torch.no_grad():
        model.model.layers[0].ple.ple_embedding.layer_multipliers[1] += 2
    save(model, Case(FAMILY, {}).file(), tmp_path)
    with pytest.raises(kv.errors.FormatError, match=r"layer_multipliers: got I64 \[3\] with other numbers"):
        loaded(tmp_path)


# ---- blocks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.ci) for name in NAMES])
def test_no_near_tie_decides(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In transformers, between the last block that is chosen and the next, of every row that chooses."""
    model, gaps, topk = build(Case(FAMILY, VARIANTS[name].changes)), [], torch.Tensor.topk
    most = model.config.indexer_budget // model.config.indexer_compress_ratio

    def watched(self: torch.Tensor, k: int, *rest: Any, **options: Any) -> Any:
        if self.ndim == 1 and self.shape[0] > k == most:
            best = topk(self, k + 1).values
            gaps.append(float((best[-2] - best[-1]) / best[0]))
        return topk(self, k, *rest, **options)

    monkeypatch.setattr(torch.Tensor, "topk", watched)
    with torch.no_grad():
        model(torch.from_numpy(tokens())[None], use_cache=False)
    choosing = sum((row + 1) // model.config.indexer_compress_ratio > most for row in range(TOKENS))
    assert len(gaps) == choosing * sum(isinstance(each, Qwen4ExpTextQSAIndexer) for each in model.modules())
    assert min(gaps) > NEAR


def test_all_blocks_are_full_attention(tmp_path: Path) -> None:
    """A budget of a whole text: the logits of a file without an index. One block more changes no bit."""
    found = []
    for budget in (TOKENS, TOKENS + 4):
        model = saved(tmp_path / str(budget), {"indexer_budget": budget})
        found.append(computed(tmp_path / str(budget)))
    np.testing.assert_array_equal(*found)
    raw = {key: value for key, value in Case(FAMILY, {}).file().items() if not key.startswith("indexer_")}
    for layer in model.model.layers:
        if hasattr(layer, "self_attn"):
            del layer.self_attn.indexer
    save(model, raw, tmp_path / "full")
    close(computed(tmp_path / "full"), found[0], LOGITS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indexer_budget": 6}, r"indexer_budget: got 6, allowed a multiple of indexer_compress_ratio \(4\)"),
        ({"indexer_head_dim": 2}, "indexer_head_dim: got 2, allowed 4"),
        ({"indexer_head_dim": None}, "indexer_head_dim: got null"),
        ({"indexer_kv_heads": 2}, "indexer_kv_heads: got 2, allowed 1"),
        ({"ple_layer_ids": [2]}, r"ple_layer_ids: got \[2\], allowed layers of linear_attention"),
        ({"ple_embed_dim": 30}, "ple_embed_dim: got 30, allowed a multiple of 4"),
        ({"eos_token_id": []}, r"eos_token_id: got \[\], allowed a token"),
        ({"output_gate_type": "tanh"}, "output_gate_type: got 'tanh', allowed silu or sigmoid"),
        ({"hc_count": 1}, "hc_count: got 1, allowed"),
    ],
)
def test_refusals(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(Case(FAMILY, changes).file()))
    with pytest.raises(kv.errors.Error, match=message):
        kv.models.describe(tmp_path)
