"""What ``generate`` and loops do with a session: beams, branches, cuts, pieces, pipelines, conversations."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

import kvtrie as kv

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import bounds  # noqa: E402
import hf_models as hf  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left_over")


@pytest.fixture(params=["copy", "cells"])
def cache(request: pytest.FixtureRequest) -> Iterator[Any]:
    with kv.hf.Cache(hf.tiny("qwen3"), capacity=2048, form=request.param) as made:
        yield made


@pytest.fixture
def states() -> Iterator[Any]:
    with kv.hf.Cache(hf.tiny("qwen3_5"), capacity=2048, slots=64) as made:
        yield made


def close(got: Any, wanted: Any) -> None:
    bounds.close(got, wanted, bounds.LOGITS_OF_TORCH)


def same(cache: Any, past: Any, ids: Any, **options: Any) -> Any:
    wanted, got = hf.answer(cache.model, ids, **options), hf.answer(cache.model, ids, past, **options)
    hf.close(got, wanted)
    assert all(why is None for why in past.why)
    return got


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"num_beams": 4, "num_return_sequences": 2}])
def test_beams(cache: Any, options: Any) -> None:
    ids = hf.prompt(20)
    for reused in (0, 19):
        with cache.session() as past:
            same(cache, past, ids, **options)
            assert past.reused == reused
            assert len(past.rows) == options["num_beams"]
    assert cache.prefix_cache.check() == []


def test_beams_over_states(states: Any) -> None:
    for _ in range(2):
        with states.session() as past:
            same(states, past, hf.prompt(20), num_beams=3)


def test_several_sequences_of_one_prompt(cache: Any) -> None:
    ids = hf.prompt(20)
    options = {"do_sample": True, "num_return_sequences": 3, "temperature": 2.0}
    answers = []
    for session in (None, cache.session(), cache.session(ids)):
        torch.manual_seed(3)
        answers.append(hf.answer(cache.model, ids, session, **options))
    hf.close(answers[1], answers[0])
    hf.close(answers[2], answers[0])
    for row in answers[0].sequences.tolist():  # each is a branch of the tree: all of it but its last token
        assert cache.prefix_cache.plan(row).matched == len(row) - 1


def test_prompt_lookup_crops(cache: Any) -> None:
    ids = hf.prompt(6).repeat(1, 5)
    with cache.session() as past:
        got = hf.answer(cache.model, ids, past, prompt_lookup_num_tokens=4)
        assert torch.equal(got.sequences, hf.answer(cache.model, ids).sequences)
        assert past.why == [None]
        assert past.tokens[0] == got.sequences[0, : past.columns].tolist()


def test_prompt_lookup_of_a_known_prompt(cache: Any) -> None:
    """The first pass asks for the logits of its candidates, too: so many tokens are left to compute."""
    ids = hf.prompt(6).repeat(1, 5)
    wanted = hf.answer(cache.model, ids)
    for _ in range(3):
        with cache.session() as past:
            got = hf.answer(cache.model, ids, past, prompt_lookup_num_tokens=4)
            assert torch.equal(got.sequences, wanted.sequences)
            close(torch.stack(got.logits), torch.stack(wanted.logits))
            assert past.why == [None]
    assert past.reused == 29


def test_assisted_by_another_model(cache: Any) -> None:
    assistant = hf.tiny("llama")
    for _ in range(2):
        with cache.session() as past:
            got = hf.answer(cache.model, hf.prompt(20), past, assistant_model=assistant)
            hf.close(got, hf.answer(cache.model, hf.prompt(20)))
            assert past.why == [None]


@pytest.mark.parametrize("option", ["output_hidden_states", "output_attentions", "output_scores", "labels"])
def test_what_else_generate_gives(cache: Any, option: str) -> None:
    """Rows of the whole prompt in the first step, where they are asked for."""
    ids, implementation = hf.prompt(20), cache.model.config._attn_implementation
    if option == "output_attentions":  # which the other kinds of attention do not have
        cache.model.set_attn_implementation("eager" if cache.form.name == "copy" else "kvtrie_eager")
    hf.answer(cache.model, ids, cache.session())
    options = {option: ids if option == "labels" else True}
    with cache.session() as past:
        wanted, got = hf.answer(cache.model, ids, **options), hf.answer(cache.model, ids, past, **options)
        hf.close(got, wanted)
        for mine, other in zip(flat(got), flat(wanted)):
            close(mine, other)
        assert len(flat(got)) == len(flat(wanted)) > 0
        whole = option in ("output_hidden_states", "output_attentions")
        assert (past.reused, past.why[0] is None) == ((0, False) if whole else (19, True))
    cache.model.set_attn_implementation(implementation)


def flat(answer: Any) -> list[Any]:
    """All tensors of an answer of ``generate``."""
    found: list[Any] = []
    waiting = [each for name, each in answer.items() if name != "cache"]
    while waiting:
        each = waiting.pop()
        if torch.is_tensor(each):
            found.append(each)
        elif isinstance(each, tuple):
            waiting += each
    return found


def test_prefill_in_pieces(cache: Any) -> None:
    ids = hf.prompt(40)
    for _ in range(2):
        with cache.session() as past:
            same(cache, past, ids, prefill_chunk_size=16)
    with cache.session(ids) as past:
        same(cache, past, ids, prefill_chunk_size=16)


def test_a_loop_of_ones_own(cache: Any) -> None:
    model, ids = cache.model, hf.prompt(30)
    with torch.no_grad():
        wanted = model(ids).logits
        with cache.session(ids[:, :25]) as past:
            close(model(past.remaining, cache=past).logits, wanted[:, :25])
            for at in range(25, 30):
                close(model(ids[:, at : at + 1], cache=past).logits[:, 0], wanted[:, at])
        with cache.session(ids) as past:
            assert (past.reused, past.get_seq_length(), past.remaining.tolist()) == (29, 29, ids[:, 29:].tolist())
            close(model(ids, cache=past).logits, wanted[:, 29:])  # the whole prompt
            assert past.remaining.numel() == 0


def test_tokens_that_were_not_announced(cache: Any) -> None:
    """What the model was given counts, not what ``session`` was told."""
    model, ids, other = cache.model, hf.prompt(10), hf.prompt(10, seed=2)
    with torch.no_grad(), cache.session(ids) as past:
        close(model(other, cache=past).logits, model(other).logits)
        assert past.tokens == other.tolist()
    assert cache.prefix_cache.plan([*other[0].tolist(), 1]).matched == 10
    assert cache.prefix_cache.plan([*ids[0].tolist(), 1]).matched == 0


def test_branches_go_their_own_ways(cache: Any) -> None:
    ids = hf.prompt(20)
    with cache.session() as past:
        hf.answer(cache.model, ids, past)
        turns = [torch.cat([torch.tensor(past.tokens), hf.prompt(5, seed=seed)], 1) for seed in (2, 3, 4)]
        sessions = [copy.deepcopy(past), copy.copy(past), past]
        for _ in range(2):
            for session, turn in zip(sessions, turns):
                same(cache, session, turn)
            turns = [torch.cat([torch.tensor(each.tokens), hf.prompt(3, seed=9)], 1) for each in sessions]
        for session in sessions[:2]:
            session.close()


def test_branches_of_states(states: Any) -> None:
    with states.session() as past:
        hf.answer(states.model, hf.prompt(20), past)
        turns = [torch.cat([torch.tensor(past.tokens), hf.prompt(5, seed=seed)], 1) for seed in (2, 3)]
        with past.branch() as other:
            for session, turn in zip((other, past), turns):
                same(states, session, turn)


def test_crop_goes_back(cache: Any) -> None:
    model, ids = cache.model, hf.prompt(20)
    with torch.no_grad(), cache.session() as past:
        model(ids, cache=past)
        past.crop(0)
        past.crop(-8)
        assert (past.get_seq_length(), past.tokens) == (12, ids[:, :12].tolist())
        other = torch.cat([ids[:, :12], hf.prompt(6, seed=2)], 1)
        close(model(other[:, 12:], cache=past).logits, model(other).logits[:, 12:])
        with pytest.raises(ValueError, match="allowed 0 or a negative number"):
            past.crop(5)
        assert past.get_seq_length() == 18
    for known in (ids, other):
        assert cache.prefix_cache.plan([*known[0].tolist(), 1]).matched == known.shape[1]


def test_rows_change_places(cache: Any) -> None:
    model, ids = cache.model, hf.prompt(10, rows=3)
    nexts = hf.prompt(4, seed=5, rows=4)
    with torch.no_grad(), cache.session() as past:
        model(ids, cache=past)
        past.reorder_cache(torch.tensor([2, 0, 2]))
        past.batch_repeat_interleave(2)
        past.batch_select_indices(torch.tensor([0, 2, 3, 5]))
        order = [2, 0, 0, 2]
        wanted = model(torch.cat([ids[order], nexts], 1)).logits[:, 10:]
        close(model(nexts, cache=past).logits, wanted)
        assert past.tokens == torch.cat([ids[order], nexts], 1).tolist()
        past.reset()
        close(model(ids, cache=past).logits, model(ids).logits[:, past.reused :])


def test_a_conversation_goes_on_and_is_found_again(cache: Any) -> None:
    text = hf.prompt(15)
    with cache.session() as past:
        for turn in range(4):
            text = torch.cat([same(cache, past, text).sequences, hf.prompt(6, seed=10 + turn)], 1)
    with cache.session(text) as later:
        assert later.reused == text.shape[1] - 7
        same(cache, later, text)


def test_models_without_attention_go_on_too() -> None:
    """``generate`` gives them the whole text each time."""
    with kv.hf.Cache(hf.tiny("mamba2"), slots=32) as cache, cache.session() as past:
        text = hf.prompt(15)
        for turn in range(3):
            text = torch.cat([same(cache, past, text).sequences, hf.prompt(6, seed=10 + turn)], 1)
        with cache.session() as later:
            same(cache, later, text)
            assert later.reused > 0


def test_calls_without_a_session_run_as_before(cache: Any) -> None:
    ids = hf.prompt(20)
    before = hf.answer(cache.model, ids)
    with cache.session() as past:
        same(cache, past, ids)
        assert hf.same_bits(hf.answer(cache.model, ids), before)
        own = transformers.DynamicCache(config=cache.model.config)
        assert hf.same_bits(hf.answer(cache.model, ids, own), before)


def test_a_pipeline() -> None:
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="w95")
    model = hf.tiny("llama")
    pipe = transformers.pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    text = " ".join(f"w{token}" for token in hf.prompt(20)[0].tolist())
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": hf.PAD}
    with kv.hf.Cache(model, capacity=256) as cache:
        answers = [pipe(text, **options)]
        for reused in (0, 19):
            past = cache.session()
            answers.append(pipe(text, cache=past, **options))
            assert past.reused == reused
        assert answers[1] == answers[2] == answers[0]


def words() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(hf.VOCAB)}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made
