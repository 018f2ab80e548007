"""Generation: which tokens, in which order they are recorded, and what ends it; text in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGITS
from reference_llama import random_llama, reference_logits, save_checkpoint
from text_tokenizer import SPECIAL, VOCAB, save_tokenizer

SEED = 11
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def network() -> Any:
    return random_llama(SEED)


@pytest.fixture(scope="module")
def model(network: Any) -> Any:
    return kv.models.from_weights(*network)


@pytest.fixture
def cache(model: Any) -> Any:
    cache = kv.PrefixCache(model.caches(capacity=512, dtype="float32"))
    yield cache
    cache.close()


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("text")
    save_checkpoint(folder, *random_llama(SEED, vocab=VOCAB, eos_token_id=VOCAB - 1))
    return kv.models.load(save_tokenizer(folder))


def greedy(network: Any, prompt: list[int], count: int) -> list[int]:
    """What a float64 forward pass without any cache would write."""
    tokens = list(prompt)
    for _ in range(count):
        logits = reference_logits(*network, tokens)[-1]
        first, second = np.sort(logits)[::-1][:2]
        assert first - second > 2 * LOGITS.value * np.abs(logits).max(), (
            "choose another seed: the top two are too close"
        )
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


def test_greedy_equals_the_reference(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        assert list(kv.generate(model, session, max_tokens=20)) == greedy(network, PROMPT, 20)


def test_the_last_token_is_recorded_not_computed(model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        for count, token in enumerate(kv.generate(model, session, max_tokens=5), 1):
            assert session.tokens[-1] == token
            assert session.length == len(PROMPT) + count - 1
        assert len(session.tokens) == len(PROMPT) + 5
        assert len(session.remaining) == 1


def test_generation_can_go_on(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        first = list(kv.generate(model, session, max_tokens=3))
        second = list(kv.generate(model, session, max_tokens=4))
    assert first + second == greedy(network, PROMPT, 7)


def test_small_chunks_write_the_same(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT, publish=False) as session:
        assert list(kv.generate(model, session, max_tokens=6, chunk=3)) == greedy(network, PROMPT, 6)


def test_computed_branch_goes_on(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        for step in session.prefill():
            model(step)
        with session.branch() as twin:
            assert list(kv.generate(model, twin, max_tokens=4)) == greedy(network, PROMPT, 4)
        assert cache.check() == []


def test_branch_goes_on_from_given_logits(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        for step in session.prefill():
            logits = model(step)
        with session.branch() as twin:
            assert list(kv.generate(model, twin, max_tokens=4, logits=logits)) == greedy(network, PROMPT, 4)
        session.append(7)
        with pytest.raises(ValueError, match="logits"):
            kv.generate(model, session, logits=logits)


def test_stop_token_is_the_last_one(network: Any, model: Any, cache: Any) -> None:
    wanted = greedy(network, PROMPT, 8)
    stop = wanted[4]
    cut = wanted[: wanted.index(stop) + 1]
    for form in (stop, [stop], {stop}, np.int32(stop), np.array([stop])):
        with cache.begin(PROMPT) as session:
            assert list(kv.generate(model, session, max_tokens=8, stop=form)) == cut
            assert list(session.tokens[len(PROMPT) :]) == cut


def test_end_of_text_stops_unless_told_otherwise(network: Any, cache: Any) -> None:
    config, weights = network
    wanted = greedy(network, PROMPT, 6)
    model = kv.models.from_weights({**config, "eos_token_id": [wanted[2]]}, weights)
    assert model.config.eos_token_ids == (wanted[2],)
    with cache.begin(PROMPT) as session:
        assert list(kv.generate(model, session, max_tokens=6)) == wanted[: wanted.index(wanted[2]) + 1]
    with cache.begin(PROMPT) as session:
        assert list(kv.generate(model, session, max_tokens=6, ignore_eos=True)) == wanted


def test_a_model_of_ones_own_needs_its_end_tokens_alone(network: Any, model: Any, cache: Any) -> None:
    """A wrapper with ``config`` and a call, as the demo has one."""

    class Wrapper:
        config = model.config

        def __call__(self, step: Any) -> Any:
            return model(step)

    with cache.begin(PROMPT) as session:
        assert list(kv.generate(Wrapper(), session, max_tokens=4)) == greedy(network, PROMPT, 4)
        with pytest.raises(kv.errors.ArgumentError, match="tokenizer"):
            kv.generate(Wrapper(), session, stop="text")


def test_sampling_depends_on_seed_and_position_only(model: Any, cache: Any) -> None:
    def sample(seed: int, tokens: list[int], count: int) -> list[int]:
        with cache.begin(tokens) as session:
            return list(kv.generate(model, session, max_tokens=count, temperature=1.5, seed=seed, ignore_eos=True))

    whole = sample(1, PROMPT, 12)
    assert sample(1, PROMPT, 12) == whole
    assert sample(1, PROMPT + whole[:5], 7) == whole[5:]
    assert sample(2, PROMPT, 12) != whole


def test_top_k_one_is_greedy(network: Any, model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        tokens = kv.generate(model, session, max_tokens=6, temperature=2.0, top_k=1, seed=3)
        assert list(tokens) == greedy(network, PROMPT, 6)


def test_nothing_is_computed_before_the_first_token_is_asked_for(model: Any, cache: Any) -> None:
    with cache.begin(PROMPT) as session:
        assert list(kv.generate(model, session, max_tokens=0)) == []
        generator = kv.generate(model, session, max_tokens=2)
        assert session.length == 0
        next(iter(generator))
        assert session.length == len(PROMPT)


WRONG = [
    ({"max_tokens": -1}, ValueError, "max_tokens"),
    ({"max_tokens": 1.5}, TypeError, "max_tokens"),
    ({"max_tokens": True}, TypeError, "max_tokens"),
    ({"temperature": -0.1}, ValueError, "temperature"),
    ({"temperature": float("nan")}, ValueError, "temperature"),
    ({"temperature": "hot"}, TypeError, "temperature"),
    ({"top_p": 0.0}, ValueError, "top_p"),
    ({"top_p": 1.1}, ValueError, "top_p"),
    ({"top_k": -1}, ValueError, "top_k"),
    ({"seed": -1}, ValueError, "seed"),
    ({"chunk": 0}, ValueError, "chunk"),
    ({"stop": 2.5}, TypeError, "stop"),
    ({"stop": [2.5]}, TypeError, "stop"),
    ({"stop": [""]}, TypeError, "stop"),
    ({"stop": "text"}, ValueError, "tokenizer"),
]


@pytest.mark.parametrize(("arguments", "kind", "named"), WRONG)
def test_wrong_arguments_change_nothing(
    arguments: dict[str, Any], kind: type[Exception], named: str, model: Any, cache: Any
) -> None:
    with cache.begin(PROMPT) as session:
        with pytest.raises(kind, match=named):
            kv.generate(model, session, **arguments)
        assert (session.length, list(session.tokens)) == (0, PROMPT)


def test_stop_text_ends_with_the_token_that_completes_it(text_model: Any) -> None:
    cache = kv.PrefixCache(text_model.caches(capacity=256, dtype="float32"))
    prompt = text_model.tokenizer.encode("hello")
    with cache.begin(prompt) as session:
        free = list(kv.generate(text_model, session, max_tokens=24, temperature=1.0, seed=5, ignore_eos=True))
    text = text_model.tokenizer.decode(free)
    printable = [i for i in range(len(text) - 1) if "\ufffd" not in text[i : i + 2]]
    assert printable, "choose another seed: no two whole characters in a row"
    wanted = text[printable[0] : printable[0] + 2]
    with cache.begin(prompt) as session:
        cut = list(kv.generate(text_model, session, max_tokens=24, temperature=1.0, seed=5, stop=["no such", wanted]))
    assert cut == free[: len(cut)] and len(cut) < len(free)
    assert wanted in text_model.tokenizer.decode(cut)
    assert wanted not in text_model.tokenizer.decode(cut[:-1])


def test_streamed_text_never_splits_a_character(text_model: Any) -> None:
    tokenizer = text_model.tokenizer
    text = "na\u00efve \u4f60\u597d \U0001f642 end"
    stream = tokenizer.stream()
    pieces = [stream.feed(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text and stream.finish() == ""
    assert all("\ufffd" not in piece for piece in pieces)
    assert len(pieces) == len(text.encode())
    half = tokenizer.encode("\u4f60")[:2]
    assert [stream.feed(token) for token in half] == ["", ""]
    assert stream.finish().endswith("\ufffd")


def test_long_streams_stay_exact(text_model: Any) -> None:
    tokenizer = text_model.tokenizer
    text = "".join(chr(32 + i % 90) + "\u20ac" for i in range(400))
    stream = tokenizer.stream()
    assert "".join(stream.feed(token) for token in tokenizer.encode(text)) + stream.finish() == text


@pytest.mark.parametrize("tokens", [3, None, "ab", [1.5], ["a"], [None], [[1]], [-1], [1 << 40]])
def test_wrong_tokens_are_refused_by_name(text_model: Any, tokens: Any) -> None:
    tokenizer = text_model.tokenizer
    with pytest.raises(
        (kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=r"^\[tokenizer.decode\] tokens: got .*allowed"
    ):
        tokenizer.decode(tokens)
    assert tokenizer.decode([1 << 20]) == ""  # a model may have more ids than its tokenizer
    stream = tokenizer.stream()
    for token in tokens if isinstance(tokens, list) else [None, "ab"]:
        with pytest.raises(
            (kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=r"^\[tokenizer.stream\] tokens: got "
        ):
            stream.feed(token)
    assert stream.finish() == ""


@pytest.mark.parametrize("wrong", [3, None, b"x"])
def test_wrong_texts_are_refused_by_name(text_model: Any, wrong: Any) -> None:
    tokenizer = text_model.tokenizer
    for call in (tokenizer.encode, tokenizer.token_id, tokenizer.special_id):
        with pytest.raises(kv.errors.ArgumentTypeError, match=r"^\[tokenizer\..*got .*, allowed a str"):
            call(wrong)
    with pytest.raises((kv.errors.ArgumentError, kv.errors.ArgumentTypeError), match=r"^\[tokenizer\] "):
        tokenizer.apply_chat_template(wrong)


def test_chat_template(text_model: Any) -> None:
    tokenizer = text_model.tokenizer
    messages = [{"role": "user", "content": "hi"}]
    wanted = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False) == wanted
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert tokens[0] == tokenizer.token_id(SPECIAL[1]) and tokenizer.decode(tokens) == wanted
    assert tokenizer.decode(tokens, skip_special_tokens=True) == "user\nhi\nassistant\n"


def test_chat_templates_are_sandboxed(text_model: Any) -> None:
    raw = text_model.tokenizer.raw
    hostile = kv.models.Tokenizer(raw, chat_template="{{ messages.__class__.__mro__ }}")
    with pytest.raises(ValueError, match="chat template"):
        hostile.apply_chat_template([])
    refusing = kv.models.Tokenizer(raw, chat_template="{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        refusing.apply_chat_template([])
    with pytest.raises(kv.errors.NotSupportedError, match="no chat template"):
        kv.models.Tokenizer(raw).apply_chat_template([])


def test_templates_see_what_hugging_face_gives_them(text_model: Any) -> None:
    source = "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    source += "{{ eos_token }}"
    tokenizer = kv.models.Tokenizer(text_model.tokenizer.raw, special={"eos_token": "<e>"}, chat_template=source)
    text = tokenizer.apply_chat_template([{"a": "\u00e9"}, {"b": 1}], tokenize=False)
    assert text == '{"a": "\u00e9"}<e>'


def test_template_file_wins(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token }}{{ messages | length }}")
    tokenizer = kv.models.Tokenizer.load(tmp_path)
    assert tokenizer is not None
    assert tokenizer.apply_chat_template([{"role": "user", "content": ""}], tokenize=False) == "<|endoftext|>1"
