"""The prediction heads of checkpoints (mtp.* tensors): what they say is what a naive twin says, in caches that stay in
step; and the answer stays what it is.

The models are the goldens', with a head of random weights, which is never right; and one whose head is always right.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS_OF_KINDS, close
from kvtrie._drafting import Costs
from kvtrie.models.weights import open_folder, to_float32
from mtp_twin import LAYER, Twin, head_weights
from mtp_twin_layers import RAWS, LayerTwin, weights_behind
from random_models import random_model
from reference_llama import save_checkpoint

pytestmark = pytest.mark.usefixtures("nothing_left_over")

GOLDENS = Path(__file__).parent / "goldens"
NAMES = ("qwen3-next-experts", "qwen3-next-sparse-bias", "qwen3-5-dense", "qwen3-5-experts", *RAWS)
VOCAB = 128
COUNT = 40
VARIED: dict[str, Any] = {"ignore_eos": True, "temperature": 1.0, "seed": 5}


def raw_of(name: str) -> dict[str, Any]:
    if name in RAWS:
        return RAWS[name]
    found: dict[str, Any] = json.loads((GOLDENS / name / "config.json").read_text())
    return found


def weights_of(name: str) -> dict[str, Any]:
    """Of the golden, or of a random model, and of a head."""
    if name in RAWS:
        return weights_behind(name)
    own = {key: to_float32(source.read(), source.dtype) for key, source in open_folder(GOLDENS / name).items()}
    return {**own, **head_weights(raw_of(name))}


def load(name: str, weights: Any = None) -> Any:
    return kv.models.from_weights(raw_of(name), weights or weights_of(name), dtype="float32", mtp=True)


def twin_of(name: str, model: Any) -> Twin:
    return LayerTwin(RAWS[name], weights_of(name)) if name in RAWS else Twin(model.config, weights_of(name))


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.soak) if name == "glm4-moe-lite" else name for name in NAMES],
)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as long as may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: [min(most, 7) for most in limits])


def make_cache(model: Any, capacity: int = 512) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=capacity, dtype="float32"))


def head_cache(model: Any, capacity: int = 512, **options: Any) -> kv.PrefixCache:
    return kv.PrefixCache(model.mtp.caches(capacity=capacity, dtype="float32"), **options)


def prompt(seed: int, count: int = 30) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, VOCAB, count)]


def hidden_of(model: Any, tokens: list[int], chunk: int = 512) -> Any:
    """Hidden states [n, hidden_size], in a cache of its own."""
    with make_cache(model) as cache, cache.begin(tokens, publish=False) as session:
        return np.concatenate([np.asarray(model(step, hidden=True)[1]) for step in session.prefill(chunk)])


# ---- the model and its head ------------------------------------------------------------------------------------------


def test_hidden_states_are_what_the_head_of_the_model_reads(name: str) -> None:
    """Of all rows, whichever have logits; those have the bits that they have without."""
    model, text = load(name), prompt(1, 9)
    head = np.asarray(weights_of(name).get("lm_head.weight", weights_of(name)["model.embed_tokens.weight"]))
    with make_cache(model) as cache:
        made = []
        for arguments in ({}, {"all_rows": True}):
            with cache.begin(text, use=False, publish=False) as session:
                plain = np.asarray(model(session.decode(), **arguments))
            with cache.begin(text, use=False, publish=False) as session:
                logits, hidden = (np.asarray(each) for each in model(session.decode(), hidden=True, **arguments))
            assert logits.tobytes() == plain.tobytes()
            assert hidden.shape == (9, model.config.hidden_size)
            close(hidden[-len(logits) :] @ head.T, logits, LOGITS_OF_KINDS)
            made.append(hidden.tobytes())
        assert made[0] == made[1]
        with cache.begin(text) as session, pytest.raises(kv.errors.ArgumentTypeError, match=r"\[model\] hidden"):
            model(session.decode(), hidden=1)


@pytest.mark.parametrize("chunk", [1, 5, 512])
def test_the_head_is_that_of_the_twin(name: str, chunk: int) -> None:
    """Its logits and states, row by row, in chunks and at once."""
    model, tokens = load(name), prompt(2, 24)
    twin = twin_of(name, model)
    hidden = hidden_of(model, tokens)
    logits, states = twin(hidden[:-1], tokens[1:])
    with head_cache(model) as cache, cache.begin(tokens[1:]) as session:
        at = 0
        for step in session.prefill(chunk):
            rows = kv.tensor(hidden[at : at + len(step.tokens)])
            at += len(step.tokens)
            found, state = model.further(step, rows)
            close(np.asarray(found)[0], logits[at - 1], LOGITS_OF_KINDS)
            close(np.asarray(state)[0], states[at - 1], LOGITS_OF_KINDS)
        assert at == 23


# ---- as a drafter ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_the_answer_is_that_without_drafts(name: str) -> None:
    model, text = load(name), prompt(3)
    with make_cache(model) as cache, head_cache(model) as own:
        for options in ({}, {"temperature": 0.9, "seed": 5}, {"repetition_penalty": 1.3}):
            answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True, **options))
            for draft in (kv.PredictionHead(model, own), ["prompt", kv.PredictionHead(model, own)]):
                with cache.begin(text, use=False, publish=False) as session:
                    made = kv.generate(model, session, COUNT, ignore_eos=True, draft=draft, **options)
                    assert list(made) == answer
                assert made.proposed > 0
                assert own.stats()["sessions"] == 0
            assert own.check() == cache.check() == []


@pytest.mark.usefixtures("eager")
def test_the_bits_are_those_without_drafts(name: str) -> None:
    """Logits behind the answer, and K and V of every layer, on the CPU device."""
    model = load(name)

    def bits(draft: Any) -> tuple[list[int], bytes, list[bytes]]:
        with make_cache(model) as cache, cache.begin(prompt(4)) as session:
            answer = list(kv.generate(model, session, COUNT, **VARIED, draft=draft))
            logits = np.asarray(model(session.decode()), np.float32)
            rows = [np.asarray(part).tobytes() for pair in session.kv_all().values() for part in pair]
            return answer, logits.tobytes(), rows

    with head_cache(model) as own:
        assert bits(kv.PredictionHead(model, own)) == bits(None)


def test_steps_with_hidden_states_are_replayed_as_those_without() -> None:
    """Where steps are replayed at all; one that is not takes several times as long in a small model."""
    model = load("qwen3-5-dense")
    model.warm_up("float32")
    with make_cache(model) as cache, head_cache(model) as own:
        for draft in (None, kv.PredictionHead(model, own)):
            with cache.begin(prompt(4), use=False, publish=False) as session:
                list(kv.generate(model, session, COUNT, **VARIED, draft=draft))
        plain, watched = model.graphs.stats, model._hidden_graphs.stats
        assert (watched["replays"] > 0) == (plain["replays"] > 0)
        assert watched["refusals"] == plain["refusals"]


def always_right(name: str = "qwen3-5-dense") -> Any:
    """A model whose layers add nothing, so that the last token alone says what is next; and its head says the same."""
    weights = weights_of(name)
    for key, value in weights.items():
        if key.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
            weights[key] = np.zeros_like(value)
    size = raw_of(name)["hidden_size"]
    weights["mtp.fc.weight"] = np.eye(size, 2 * size, dtype=np.float32)
    weights["mtp.pre_fc_norm_embedding.weight"] = np.zeros(size, np.float32)
    weights["mtp.norm.weight"] = weights["model.norm.weight"]
    return load(name, weights)


@pytest.mark.usefixtures("eager")
def test_what_a_good_head_says_is_accepted() -> None:
    """Four tokens out of five, from a processor that has its own will about every fifth."""
    model, text = always_right(), prompt(5)
    with make_cache(model) as cache, head_cache(model) as own:

        def will(tokens: Any, row: Any) -> Any:
            if len(tokens) % 5 == 0:
                row[len(tokens) % VOCAB] = 1e9
            return row

        options: dict[str, Any] = {"ignore_eos": True, "logits_processors": will}
        answer = list(kv.generate(model, cache.begin(text), COUNT, **options))
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, draft=kv.PredictionHead(model, own), **options)
            assert list(made) == answer
        assert COUNT / 2 < made.accepted < made.proposed
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, draft=kv.PredictionHead(model, own), ignore_eos=True)
            list(made)
        assert made.accepted == made.proposed > COUNT / 2


@pytest.mark.parametrize("name", ["qwen3-next-experts", "qwen3-5-dense", "glm4-moe", "deepseek-v3", "glm-moe-dsa"])
def test_random_answers(name: str) -> None:
    """Answers that go on with right drafts and wrong ones, go back, end and come again, in two namespaces: drafts are
    those that the twin makes of all hidden states, whatever the head's cache knew; where its likeliest tokens are not
    too close to tell apart."""
    print("seed 42")
    random = np.random.default_rng(42)
    model = load(name)
    twin = twin_of(name, model)
    told = 0
    with make_cache(model, 1024) as cache, head_cache(model, 1024) as own:
        head = kv.PredictionHead(model, own)
        twins: list[tuple[Any, Any, Any]] = []
        for _ in range(60):
            if len(twins) < 3:
                text = prompt(int(random.integers(3)), int(random.integers(2, 40)))
                drafter = head.drafter(model)
                # Its model computes all of it, so that the head sees every hidden state.
                session = cache.begin(text, str(random.choice(["alice", "bob"])), use=False)
                watched = drafter.watch(model)
                for step in session.prefill(int(random.integers(1, 20))):
                    watched(step)
                session.append(int(random.integers(VOCAB)))
                twins.append((session, drafter, watched))
            session, drafter, watched = twins[int(random.integers(len(twins)))]
            tokens = session.tokens.tolist()
            most = int(random.integers(1, 5))
            found = drafter(session, most)
            wanted, lead = twin.drafts(hidden_of(model, tokens)[:-1], tokens, most)
            assert len(found) == most
            if lead > 1e-3:
                assert found == wanted
                told += 1
            step = session.propose(found)
            watched(step, all_rows=True)
            right = int(random.integers(most + 1))
            step.accept(right)
            session.append(int(random.integers(VOCAB)))
            if random.random() < 0.2:
                if session.rollback(int(random.integers(1, min(session.recorded - 2, 12)))) == 0:
                    session.recompute()  # the head needs the hidden state of the last row
                for step in session.prefill():
                    watched(step)
                session.append(int(random.integers(VOCAB)))
            if random.random() < 0.1:  # another text altogether, which may have the same tokens behind the first
                rest = session.tokens.tolist()[1:8]
                session.rollback(session.recorded)
                session.append([int(random.integers(VOCAB)), *rest])
                for step in session.prefill():
                    watched(step)
                session.append(int(random.integers(VOCAB)))
            if random.random() < 0.1 or session.recorded > 90:
                twins.remove((session, drafter, watched))
                drafter.close()
                drafter.close()
                assert drafter(session, 4) == []
                session.close()
            assert own.check() == []
            assert own.stats()["sessions"] <= len(twins)
        for session, drafter, _ in twins:
            drafter.close()
            session.close()
        assert own.stats()["sessions"] == 0
    assert told > 30


@pytest.mark.usefixtures("eager")
def test_its_cache_is_shared_between_turns_and_answers() -> None:
    """The next turn goes on from what the last one left, to the last row; and another answer from the prompt."""
    model, text = load("qwen3-5-dense"), prompt(6, 100)
    with make_cache(model) as cache, head_cache(model) as own:
        head = kv.PredictionHead(model, own)
        with cache.begin(text, "alice") as session:
            answer = list(kv.generate(model, session, 10, **VARIED, draft=head))
        space = f"alice/{text[0]}"
        whole = [*text, *answer]
        assert own.plan([*whole[1:], 0], space).matched == len(whole) - 1
        assert own.plan(whole[1:], f"bob/{text[0]}").matched == 0
        for more in ([*whole, *prompt(7, 20)], text):
            before = own.stats()["computed_tokens"]
            with cache.begin(more, "alice") as session:
                made = kv.generate(model, session, 10, **VARIED, draft=head)
                list(made)
            assert made.proposed > 0
            assert 20 < own.stats()["computed_tokens"] - before < 100
        assert own.check() == []


@pytest.mark.usefixtures("eager")
def test_where_nobody_has_the_hidden_states_it_begins_behind_them() -> None:
    """A prompt that was computed without it: drafts come, of what follows; and nothing of them is published."""
    model, text = load("qwen3-5-dense"), prompt(8, 60)
    with make_cache(model) as cache, head_cache(model) as own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, **VARIED))
        with cache.begin(text) as session:
            assert session.reused > 0
            made = kv.generate(model, session, COUNT, **VARIED, draft=kv.PredictionHead(model, own))
            assert list(made) == answer
        assert made.proposed > 0
        assert own.stats()["tokens"] == 0
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, **VARIED, draft=kv.PredictionHead(model, own))
            assert list(made) == answer
        assert own.stats()["tokens"] == 0
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("capacity", [16, 64])
def test_where_its_cache_is_full_it_rests(capacity: int) -> None:
    """Of fewer cells than the text has: at its beginning, or before its end."""
    model, text = always_right(), prompt(9, 50)
    with make_cache(model) as cache, head_cache(model, capacity, growth=0) as own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True))
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, ignore_eos=True, draft=kv.PredictionHead(model, own))
            assert list(made) == answer
        assert (made.accepted > 0) == (capacity == 64)
        assert made.accepted < COUNT / 2
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
def test_an_interruption_loses_nothing() -> None:
    """Of a processor that fails on some tokens, as Ctrl-C may anywhere."""
    model, text = always_right(), prompt(10)
    fails = [False]

    def processor(tokens: Any, row: Any) -> Any:
        if len(tokens) % 5 == 0 and not fails[0]:
            fails[0] = True
            raise KeyboardInterrupt
        fails[0] = False
        return row

    with make_cache(model) as cache, head_cache(model) as own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True))
        with cache.begin(text, use=False) as session:
            made = kv.generate(
                model,
                session,
                COUNT,
                ignore_eos=True,
                logits_processors=processor,
                draft=kv.PredictionHead(model, own),
            )
            got: list[int] = []
            while made.finish_reason is None or len(got) < COUNT:
                try:
                    got.append(next(made))
                except KeyboardInterrupt:
                    assert session.tokens.tolist() == [*text, *made.tokens]
            assert got == answer
        assert own.check() == []
        assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
def test_an_answer_that_is_left_gives_everything_back() -> None:
    """By its reader, closed or dropped; the next turn goes on from there in both caches."""
    model, text = always_right(), prompt(11)
    with make_cache(model) as cache, head_cache(model) as own:
        for close_it in (True, False):
            with cache.begin(text, str(close_it)) as session:
                made = kv.generate(model, session, COUNT, ignore_eos=True, draft=kv.PredictionHead(model, own))
                for _ in range(5):
                    next(made)
                if close_it:
                    made.close()
                    known = own.plan([*session.tokens[1:].tolist(), 0], f"True/{text[0]}").matched
                    assert known == session.recorded - 1
                del made
            assert own.stats()["sessions"] == 0


@pytest.mark.usefixtures("eager")
def test_a_cache_that_was_closed_is_named() -> None:
    model, text = always_right(), prompt(14)
    with make_cache(model) as cache, head_cache(model) as own, cache.begin(text) as session:
        made = kv.generate(model, session, COUNT, ignore_eos=True, draft=kv.PredictionHead(model, own))
        next(made)
        own.close()
        with pytest.raises(kv.errors.ClosedError):
            list(made)
        assert session.tokens.tolist() == [*text, *made.tokens]
        made.close()


@pytest.mark.usefixtures("eager")
def test_two_heads_of_one_model_both_see_its_steps() -> None:
    """Each in a cache of its own; the second is asked where the first has no room."""
    model, text = always_right(), prompt(15)
    with make_cache(model) as cache, head_cache(model, 16, growth=0) as small, head_cache(model) as own:
        answer = list(kv.generate(model, cache.begin(text), COUNT, ignore_eos=True))
        draft = [kv.PredictionHead(model, small), kv.PredictionHead(model, own)]
        with cache.begin(text, use=False, publish=False) as session:
            made = kv.generate(model, session, COUNT, ignore_eos=True, draft=draft)
            assert list(made) == answer
        assert made.accepted == made.proposed > COUNT / 2
        assert small.stats()["sessions"] == own.stats()["sessions"] == 0


# ---- what is given ---------------------------------------------------------------------------------------------------


def test_heads_come_with_checkpoints_that_are_asked_for_them(name: str, tmp_path: Path) -> None:
    """The model is the same with and without."""
    folder = save_checkpoint(tmp_path / name, raw_of(name), weights_of(name))
    plain, model = kv.models.load(folder, dtype="float32"), kv.models.load(folder, dtype="float32", mtp=True)
    assert plain.mtp is None
    assert model.mtp is not None
    assert plain.fingerprint == model.fingerprint != model.mtp.fingerprint
    assert plain.nbytes == model.nbytes > model.mtp.nbytes > 0
    assert "prediction head" in repr(model.mtp)
    with make_cache(model) as cache, head_cache(model) as own:
        made = kv.generate(model, cache.begin(prompt(12)), 5, ignore_eos=True, draft=kv.PredictionHead(model, own))
        assert len(list(made)) == 5


def test_mtp_stands_for_the_models_own_head() -> None:
    model, text = always_right(), prompt(13)
    with make_cache(model) as cache, cache.begin(text) as session:
        made = kv.generate(model, session, COUNT, ignore_eos=True, draft="mtp")
        list(made)
        assert made.accepted > 0
        own = model.mtp.prefix_cache
        assert own.plan(text[1:], f"default/{text[0]}").matched == len(text) - 1
        assert kv.PredictionHead(model).cache is own
        own.close()


def test_a_model_of_images_and_text_has_its_head_beside_it() -> None:
    """As ForConditionalGeneration stores it; with experts as two tensors for all of them, too."""
    name = "qwen3-5-experts"
    plain, weights = load(name), weights_of(name)
    prefix, count = f"{LAYER}.mlp.experts", raw_of(name)["num_experts"]
    parts = {
        kind: [weights.pop(f"{prefix}.{each}.{kind}_proj.weight") for each in range(count)]
        for kind in ("gate", "up", "down")
    }
    weights[f"{prefix}.gate_up_proj"] = np.stack([np.concatenate(pair) for pair in zip(parts["gate"], parts["up"])])
    weights[f"{prefix}.down_proj"] = np.stack(parts["down"])
    named = {
        key.replace("model.", "model.language_model.", 1) if key.startswith("model.") else key: value
        for key, value in weights.items()
    }
    assert load(name, named).mtp.fingerprint == plain.mtp.fingerprint
    quantised = kv.models.from_weights(raw_of(name), weights, dtype="q8_0", mtp=True)
    assert quantised.mtp.nbytes < plain.mtp.nbytes


def test_what_is_no_head_is_refused_before_a_weight_is_read() -> None:
    def read(_done: int, _total: int) -> None:
        raise AssertionError("a weight was read")

    tiny = Path(__file__).resolve().parents[2] / "examples" / "tiny"
    with pytest.raises(kv.errors.NotSupportedError, match=r"mtp: got llama, allowed"):
        kv.models.load(tiny, mtp=True, progress=read)


def test_what_is_no_head_is_refused() -> None:
    name = "qwen3-5-dense"
    raw, weights = raw_of(name), weights_of(name)
    without = {key: value for key, value in weights.items() if not key.startswith("mtp.")}
    for given, error, text in (
        (without, kv.errors.NotSupportedError, r"mtp: got a checkpoint without mtp"),
        (
            {**weights, "mtp.fc.weight": np.zeros((3, 3), np.float32)},
            kv.errors.FormatError,
            r"mtp.fc.weight: got shape",
        ),
        ({**weights, "mtp.layers.1.x": np.zeros(3, np.float32)}, kv.errors.FormatError, r"no use for: mtp.layers.1.x"),
        (
            {k: v for k, v in weights.items() if k != "mtp.norm.weight"},
            kv.errors.FormatError,
            "'mtp.norm.weight' is missing",
        ),
    ):
        with pytest.raises(error, match=text):
            kv.models.from_weights(raw, given, mtp=True)
    for wrong in (1, "yes"):
        with pytest.raises(kv.errors.ArgumentTypeError, match="mtp"):
            kv.models.from_weights(raw, weights, mtp=wrong)  # type: ignore[arg-type]
    plain = kv.models.from_weights(raw, without, dtype="float32")
    with pytest.raises(kv.errors.ArgumentError, match=r'draft: got "mtp" for a model without its prediction head'):
        kv.generate(plain, prompt(1), draft="mtp")
    with pytest.raises(kv.errors.ArgumentError, match=r"\[PredictionHead\] model: got <kvtrie qwen3_5"):
        kv.PredictionHead(plain)
    model = load(name)
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"\[PredictionHead\] cache: got 5"):
        kv.PredictionHead(model, 5)  # type: ignore[arg-type]
    with pytest.raises(kv.errors.ArgumentError, match="draft: got the prediction head of"):
        kv.generate(random_model("dense"), prompt(1), draft=kv.PredictionHead(model))
    with make_cache(plain) as cache, cache.begin(prompt(1)) as session:
        step, rows = session.decode(), kv.tensor(np.zeros((30, 3), np.float32))
    with pytest.raises(kv.errors.NotSupportedError, match="further: got a model without"):
        plain.further(step, rows)
    model.mtp.prefix_cache.close()


# ---- in batches ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_answers_of_a_batch_are_those_alone(name: str) -> None:
    """Greedy and drawn, prompts of any length that come and go, beside answers without drafts, in two namespaces."""
    model = load(name)
    prompts = [prompt(20 + each, 3 + 17 * each) for each in range(4)]
    with make_cache(model, 1024) as cache, head_cache(model, 1024) as own:
        options: list[dict[str, Any]] = [{"temperature": 0.8, "seed": each} if each % 2 else {} for each in range(4)]
        alone = [
            list(kv.generate(model, cache.begin(text, use=False, publish=False), 24, ignore_eos=True, **each))
            for text, each in zip(prompts, options)
        ]
        head = kv.PredictionHead(model, own)
        with kv.Batch(model, cache, max_sessions=3, chunk=16, draft=head) as batch:
            answers = [
                batch.add(text, 24, ignore_eos=True, namespace="ab"[at % 2], draft=[] if at == 2 else None, **each)
                for at, (text, each) in enumerate(zip(prompts, options))
            ]
            while batch.step():
                assert own.stats()["sessions"] <= 3
        assert [answer.tokens for answer in answers] == alone
        assert [answer.proposed > 0 for answer in answers] == [True, True, False, True]
        assert own.stats()["sessions"] == cache.stats()["sessions"] == 0
        assert own.check() == cache.check() == []


@pytest.mark.usefixtures("eager")
def test_one_step_of_the_head_is_for_all_answers() -> None:
    """Of a head that is always right: three answers take the steps of one, and what it says is accepted."""
    model, steps = always_right(), []
    for count in (1, 3):
        with make_cache(model) as cache, head_cache(model) as own:
            with kv.Batch(model, cache, draft=kv.PredictionHead(model, own)) as batch:
                answers = [batch.add(prompt(30 + each), COUNT, ignore_eos=True) for each in range(count)]
                while batch.step():
                    pass
            assert all(answer.accepted == answer.proposed > COUNT / 2 for answer in answers)
            known = own.plan([*prompt(30)[1:], *answers[0].tokens, 0], f"default/{prompt(30)[0]}").matched
            assert known == len(prompt(30)) + COUNT - 1  # a next turn goes on from the last row
            steps.append(own.stats()["steps"])
    assert steps[1] <= steps[0] + 2 * 3  # the last rows of each are computed where it ends


@pytest.mark.usefixtures("eager")
def test_a_head_beside_other_drafters_is_asked_in_turn() -> None:
    model = always_right()
    with make_cache(model) as cache, head_cache(model) as own:
        head = kv.PredictionHead(model, own)
        with kv.Batch(model, cache) as batch:
            drafts: tuple[Any, ...] = (["prompt", head], [head, "prompt"], "prompt")
            answers = [
                batch.add(prompt(33 + at), COUNT, ignore_eos=True, draft=draft) for at, draft in enumerate(drafts)
            ]
            while batch.step():
                pass
        for at, answer in enumerate(answers):
            with cache.begin(prompt(33 + at), use=False, publish=False) as session:
                assert answer.tokens == list(kv.generate(model, session, COUNT, ignore_eos=True))
        assert min(answers[0].accepted, answers[1].accepted) > COUNT / 2


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("capacity", [16, 100])
def test_a_full_cache_of_the_head_costs_nobody_his_answer(capacity: int) -> None:
    model = always_right()
    with make_cache(model, 1024) as cache, head_cache(model, capacity, growth=0) as own:
        with kv.Batch(model, cache, draft=kv.PredictionHead(model, own)) as batch:
            answers = [batch.add(prompt(40 + each), COUNT, ignore_eos=True) for each in range(4)]
            while batch.step():
                pass
        for at, answer in enumerate(answers):
            with cache.begin(prompt(40 + at), use=False, publish=False) as session:
                assert answer.tokens == list(kv.generate(model, session, COUNT, ignore_eos=True))
        assert own.stats()["sessions"] == 0
        assert own.check() == []


@pytest.mark.usefixtures("eager")
def test_errors_of_the_head_end_one_answer_alone() -> None:
    """And Ctrl-C in the middle of its step none."""
    model = always_right()
    further, fails = model.further, [0]

    def failing(step: Any, hidden: Any) -> Any:
        fails[0] += 1
        if fails[0] == 5:
            raise KeyboardInterrupt
        return further(step, hidden)

    model.further = failing
    with make_cache(model) as cache, head_cache(model) as own:
        with kv.Batch(model, cache, draft=kv.PredictionHead(model, own)) as batch:
            answers = [batch.add(prompt(50 + each), COUNT, ignore_eos=True) for each in range(2)]
            interrupted = 0
            while True:
                try:
                    if not batch.step():
                        break
                except KeyboardInterrupt:
                    interrupted += 1
        del model.further
        assert interrupted == 1
        for at, answer in enumerate(answers):
            with cache.begin(prompt(50 + at), use=False, publish=False) as session:
                assert answer.tokens == list(kv.generate(model, session, COUNT, ignore_eos=True))
        assert own.stats()["sessions"] == 0
        assert own.check() == []

        def broken(_step: Any, _hidden: Any) -> Any:
            raise RuntimeError("the head is broken")

        model.further = broken
        with kv.Batcher(model, cache, draft=[]) as batcher:
            bad = batcher.submit(prompt(60), COUNT, ignore_eos=True, draft=kv.PredictionHead(model, own))
            good = batcher.submit(prompt(61), COUNT, ignore_eos=True)
            with pytest.raises(RuntimeError, match="the head is broken"):
                bad.result()
            assert len(good.result()) == COUNT
        del model.further
