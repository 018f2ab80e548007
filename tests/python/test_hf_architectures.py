"""Models of transformers with each kind of layer: what they compute with a session is what they compute with none."""

from __future__ import annotations

from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import hf_models as hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_over")

# Quick are models with each kind of layer: full, window, chunks, states, an index. The others differ in what is around
# attention.
QUICK = [
    ("copy", "llama"),
    ("cells", "gemma3"),
    ("copy", "llama4"),
    ("cells", "gpt_oss"),
    ("copy", "qwen3_5"),
    ("copy", "glm_moe_dsa"),
]
ALL = [("copy", name) for name in hf.ALL] + [("cells", name) for name in hf.IN_CELLS]
FORMS = [*QUICK, *(pytest.param(*each, marks=pytest.mark.ci) for each in ALL if each not in QUICK)]


def check(model: Any, ids: Any, past: Any) -> None:
    wanted = hf.answer(model, ids)
    hf.close(hf.answer(model, ids, past), wanted)
    assert past.why == [None]


@pytest.mark.parametrize(("form", "name"), FORMS)
def test_prompts_that_begin_alike(form: str, name: str) -> None:
    """Again, a next turn in two ways, and two that branch off; the window is 16 tokens of 40."""
    model, ids = hf.tiny(name), hf.prompt(40)
    with kv.hf.Cache(model, capacity=1024, slots=32, form=form) as cache:
        for reused in (0, 39):
            with cache.session() as past:
                check(model, ids, past)
                assert past.reused == reused
        turn = torch.cat([ids, hf.prompt(7, seed=2)], 1)
        with cache.session() as past:
            check(model, turn, past)
            assert past.reused >= 39
            longer = torch.cat([torch.tensor(past.tokens), hf.prompt(5, seed=3)], 1)
            check(model, longer, past)
        first = 16 if name == "lfm2" else 0 if name in hf.STATES else 25  # its states are kept every 16 tokens
        for seed, reused in ((4, first), (5, 25)):
            with cache.session() as past:
                check(model, torch.cat([ids[:, :25], hf.prompt(20, seed=seed)], 1), past)
                assert past.reused == reused
        assert cache.prefix_cache.check() == []


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("gemma3", "copy"),
        ("llama", "cells"),
        *(
            pytest.param(name, form, marks=pytest.mark.ci)
            for name, form in (
                ("llama", "copy"),
                ("gemma3", "cells"),
                ("llama4", "copy"),
                ("llama4", "cells"),
                ("deepseek_v32", "copy"),
            )
        ),
    ],
)
def test_padded_batches(name: str, form: str) -> None:
    """Rows of several lengths, some of which are known: each computes what the one that knows least has to."""
    model, ids = hf.tiny(name), hf.prompt(30, rows=3)
    mask = torch.ones_like(ids)
    mask[0, :11] = 0
    mask[2, :4] = 0
    ids = torch.where(mask.bool(), ids, hf.PAD)
    wanted = hf.answer(model, ids, attention_mask=mask)
    with kv.hf.Cache(model, capacity=1024, form=form) as cache:
        for row, kept in ((0, slice(11, 30)), (1, slice(0, 24)), (2, slice(4, 30))):
            hf.answer(model, ids[row : row + 1, kept], cache.session())
        with cache.session() as past:
            got = hf.answer(model, ids, past, attention_mask=mask)
            hf.close(got, wanted)
            assert (past.reused, past.why) == (24, [None] * 3)
            assert [len(tokens) for tokens in past.tokens] == [26, 37, 33]
        with cache.session(ids, mask) as past:
            assert past.reused == 29
            assert past.remaining.tolist() == ids[:, 29:].tolist()
            hf.close(hf.answer(model, ids, past, attention_mask=mask), wanted)


def test_states_take_padding_in_and_are_not_kept() -> None:
    model, ids = hf.tiny("qwen3_5"), hf.prompt(12, rows=2)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    with kv.hf.Cache(model, capacity=256, slots=16) as cache, cache.session() as past:
        got, wanted = (hf.answer(model, ids, each, attention_mask=mask) for each in (past, None))
        hf.close(got, wanted)
        assert ["padding" in (why or "") for why in past.why] == [True, False]


def test_layers_that_keep_something_else_are_refused() -> None:
    config = hf.transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2, vocab_size=hf.VOCAB)
    with pytest.raises(kv.errors.NotSupportedError, match="a decoder only"):
        kv.hf.Cache(hf.transformers.T5ForConditionalGeneration(config))


@pytest.mark.parametrize("name", [*hf.LATENT, *hf.INDEXED])
def test_models_that_make_keys_of_what_they_cache_cannot_attend_in_cells(name: str) -> None:
    what = "attend to all keys" if name in hf.INDEXED else "attend to what they cache"
    with pytest.raises(kv.errors.NotSupportedError, match=rf"form: got 'cells' for .*allowed.*{what}.*'copy'"):
        kv.hf.Cache(hf.tiny(name), form="cells")
