"""Whether, how hard and for how long a model is to think: one mechanism for the words of every API and template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import pytest

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.anthropic_schema import MessagesRequest
from kvtrie.serve.failures import refusal_of
from kvtrie.serve.ollama_schema import ChatAsked
from kvtrie.serve.openai_schema import ChatRequest
from kvtrie.serve.responses_schema import ResponseRequest
from kvtrie.thinking.asked import NoSuchThinking, Thinking, thinking_of
from kvtrie.thinking.asked import ThinkingAsked as Asked
from kvtrie.thinking.limit import ThinkingLimit
from kvtrie.thinking.reasoning import ReasoningReader
from processes import PATIENCE
from serving import TINY, Served, served, tiny_model

QUESTION: list[Any] = [{"role": "user", "content": "What is a cache?"}]
CHAT, MESSAGES, RESPONSES, OLLAMA = "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"
MOST = 60  # tokens of an answer
TURNS = "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}[assistant]"
TEMPLATES = {
    "never": TURNS,
    "always": TURNS + "<think>",  # its closing delimiter is in the words that follow
    "switch": TURNS + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}",
    "off at first": "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    + TURNS
    + "{{ '<think>' if thinking else '</think>' }}",
    "word": "{{ reasoning_effort }}" + TURNS,
    "both": "{{ reasoning_effort }}{% if enable_thinking %}<think>{% else %}</think>{% endif %}" + TURNS,
    "counts": "{{ thinking_budget }}" + TURNS,
    "channels": TURNS + "<|start|>assistant<|channel|>analysis<|message|>",  # as of gpt-oss
}
TEMPLATES["always"] = "{# </think> #}" + TEMPLATES["always"]


def tokenizer_of(template: str) -> Tokenizer:
    own = kv.models.load_tokenizer(TINY)
    assert own is not None
    return Tokenizer(own.raw, special=own.special, chat_template=TEMPLATES[template])


def became(template: str, asked: Asked, given: Any = None) -> Any:
    """The variables, the limit and whether it never thinks; or the field that is refused."""
    try:
        return tuple(thinking_of(tokenizer_of(template), asked, None, given))
    except NoSuchThinking as refused:
        told = refusal_of(refused)
    said = f"{told.param}: this model's chat template has no such setting, allowed "
    assert (told.status, told.code, told.message[: len(said)]) == (400, "unsupported_parameter", said)
    return told.param


OFF, ON = Asked(on=False), Asked(on=True)
LIMITS = {"limits": True, "effort_field": "output_config.effort"}


@pytest.mark.parametrize(
    ("template", "asked", "result"),
    [
        ("never", Asked(), ({}, None, False)),
        ("never", Asked(effort="none"), ({}, None, False)),
        ("never", OFF, ({}, None, False)),
        ("never", Asked(effort="low"), "reasoning_effort"),
        ("never", ON, "thinking.type"),
        ("never", Asked(on=True, budget=64, limits=True), ({}, None, True)),
        ("never", Asked(effort="low", limits=True), ({}, None, True)),
        ("always", Asked(effort="none"), ({}, 0, False)),
        ("always", OFF, ({}, 0, False)),
        ("always", ON, ({}, None, False)),
        ("always", Asked(on=True, budget=64, limits=True), ({}, 64, False)),
        ("always", Asked(effort="low"), "reasoning_effort"),
        ("always", Asked(effort="low", **LIMITS), "output_config.effort"),
        ("always", Asked(effort="high", **LIMITS), ({}, None, False)),
        ("switch", Asked(effort="none"), ({"enable_thinking": False}, None, False)),
        ("switch", Asked(effort="low"), ({"enable_thinking": True}, None, False)),
        ("switch", Asked(on=True, budget=9), ({"enable_thinking": True}, 9, False)),
        ("switch", Asked(on=False, budget=9), ({"enable_thinking": False}, None, False)),
        ("off at first", ON, ({"thinking": True}, None, False)),
        ("word", Asked(effort="low"), ({"reasoning_effort": "low"}, None, False)),
        ("word", Asked(effort="none"), ({"reasoning_effort": "none"}, None, False)),
        ("word", OFF, ({"reasoning_effort": "none"}, None, False)),
        ("word", ON, ({}, None, False)),
        ("word", Asked(on=True, budget=9), "thinking.budget_tokens"),
        ("both", Asked(effort="none"), ({"enable_thinking": False}, None, False)),
        ("both", Asked(effort="low"), ({"enable_thinking": True, "reasoning_effort": "low"}, None, False)),
        (
            "both",
            Asked(on=False, effort="low"),
            ({"enable_thinking": False, "reasoning_effort": "low"}, None, False),
        ),
        ("counts", Asked(on=True, budget=9), ({"thinking_budget": 9}, None, False)),
    ],
)
def test_it_is_said_in_the_templates_words(template: str, asked: Asked, result: Any) -> None:
    assert became(template, asked) == result


@pytest.mark.parametrize(
    ("template", "given", "result"),
    [
        ("switch", {"enable_thinking": True, "thinking": True}, None),
        ("off at first", {"enable_thinking": False, "thinking": False}, None),
        ("never", {"enable_thinking": False}, None),
        ("never", {"enable_thinking": True}, "chat_template_kwargs.enable_thinking"),
        ("never", {"reasoning_effort": "low"}, "chat_template_kwargs.reasoning_effort"),
        ("never", {"name": "of another variable"}, None),
        ("always", {"enable_thinking": False}, 0),
        ("always", {"thinking_budget": 7}, 7),
        ("word", {"thinking_budget": 7, "reasoning_effort": "low"}, None),
    ],
)
def test_variables_that_the_template_does_not_read_are_obeyed_too(template: str, given: Any, result: Any) -> None:
    found = became(template, Asked(), given)
    assert found == result if isinstance(result, str) else found == (given, result, False)


def test_every_api_asks_for_the_same() -> None:
    messages: Mapping[str, Any] = {"messages": QUESTION, "max_tokens": 1, "model": "m"}
    assert ChatRequest(**messages, reasoning_effort="low").thinking_asked == Asked(effort="low")
    asked = ResponseRequest.model_validate({"input": "q", "reasoning": {"effort": "low"}})
    assert asked.thinking_asked == Asked(effort="low", effort_field="reasoning.effort")
    assert ChatAsked(model="m", think=True).thinking_asked == Asked(on=True, on_field="think")
    assert ChatAsked(model="m", think="low").thinking_asked == Asked(effort="low", effort_field="think")
    fields = {"thinking": {"type": "enabled", "budget_tokens": 9}, "output_config": {"effort": "low"}}
    assert MessagesRequest(**messages, **fields).thinking_asked == Asked(True, "low", 9, **LIMITS)
    assert MessagesRequest(**messages, thinking={"type": "disabled"}).thinking_asked == Asked(on=False, **LIMITS)


# ---- the limit -------------------------------------------------------------------------------------------------------


def allowed(limit: ThinkingLimit, tokens: list[int], vocabulary: int) -> set[int]:
    logits = np.zeros(vocabulary, np.float32)
    limit(np.asarray(tokens, np.int32), logits)
    return {int(token) for token in np.flatnonzero(np.isfinite(logits))}


@pytest.mark.parametrize("most", [0, 1, 5])
@pytest.mark.parametrize("opened", [True, False])
def test_reasoning_is_closed_after_its_tokens(opened: bool, most: int) -> None:
    tokenizer = tokenizer_of("always")
    limit = ThinkingLimit(tokenizer, ReasoningReader("<think>", "</think>", opened), most)
    size, prompt = tokenizer.vocab_size, tokenizer.encode("A prompt </think>")
    generated = [] if opened else tokenizer.encode("<think>", add_special_tokens=False)
    closing = tokenizer.encode("</think>", add_special_tokens=False)
    limit(np.asarray(prompt, np.int32), np.zeros(size, np.float32))
    for word in tokenizer.encode("a b c d e f g", add_special_tokens=False)[:most]:
        assert len(allowed(limit, prompt + generated, size)) == size
        generated.append(word)
    for token in closing:
        for _ in range(2):  # a token may be chosen twice
            assert allowed(limit, prompt + generated, size) == {token}
        generated.append(token)
    assert len(allowed(limit, prompt + generated, size)) == size
    assert allowed(limit, prompt + generated[: -len(closing)], size) == {closing[0]}  # it gave its room back


def test_what_closes_by_itself_or_opens_nothing_is_left_alone() -> None:
    tokenizer = tokenizer_of("always")
    for opened, text in ((True, "a</think>b c d e"), (False, "a b c d e")):
        limit = ThinkingLimit(tokenizer, ReasoningReader("<think>", "</think>", opened), 30)
        generated = tokenizer.encode(text, add_special_tokens=False)
        for end in range(len(generated)):
            assert len(allowed(limit, generated[:end], tokenizer.vocab_size)) == tokenizer.vocab_size


# ---- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["always", "channels"])
def thinker(request: pytest.FixtureRequest) -> Iterator[Served]:
    model = tiny_model(TEMPLATES[request.param])
    if request.param == "channels":  # where <|end|> ends a message, not the answer
        own = model.tokenizer
        raw = type(own.raw).from_str(own.raw.to_str().replace("<|end|>", "<|over|>"))
        special = {name: text.replace("<|end|>", "<|over|>") for name, text in own.special.items()}
        model.tokenizer = Tokenizer(raw, special=special, chat_template=own.chat_template)
    with served(model, temperature=0.0) as running:
        yield running


@pytest.fixture(scope="module")
def never() -> Iterator[Served]:
    with served(tiny_model(TEMPLATES["never"]), temperature=0.0) as running:
        yield running


def post(server: Served, path: str, **fields: Any) -> httpx.Response:
    prompt = {"input": QUESTION} if path == RESPONSES else {"messages": QUESTION, "model": "m"}
    most = {RESPONSES: {"max_output_tokens": MOST}, OLLAMA: {"options": {"num_predict": MOST}, "stream": False}}
    body = {**prompt, **most.get(path, {"max_tokens": MOST}), **fields}
    return httpx.post(server.url + path, json=body, timeout=PATIENCE)


def answered(server: Served, path: str, **fields: Any) -> tuple[str, str]:
    """Reasoning and text."""
    response = post(server, path, **fields)
    assert response.status_code == 200, response.text
    told = response.json()
    if path == MESSAGES:
        parts = {block["type"]: block.get("text", block.get("thinking")) for block in told["content"]}
        return parts.get("thinking", ""), parts.get("text", "")
    if path == RESPONSES:
        parts = {item["type"]: item["content"][0]["text"] for item in told["output"]}
        return parts.get("reasoning", ""), parts.get("message", "")
    message = told["message"] if path == OLLAMA else told["choices"][0]["message"]
    return message.get("reasoning_content", message.get("thinking", "")), message.get("content") or ""


def test_a_budget_holds(thinker: Served) -> None:
    whole, text = answered(thinker, MESSAGES, thinking={"type": "adaptive"})
    assert whole and not text
    some, text = answered(thinker, MESSAGES, thinking={"type": "enabled", "budget_tokens": 6})
    assert whole.startswith(some) and text
    tokens = thinker.engine.model.tokenizer.encode(some, add_special_tokens=False)
    assert 0 < len(tokens) <= 6


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (MESSAGES, {"thinking": {"type": "disabled"}}),
        (CHAT, {"reasoning_effort": "none"}),
        (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}),
        (RESPONSES, {"reasoning": {"effort": "none"}}),
        (OLLAMA, {"think": False}),
    ],
)
def test_who_always_thinks_is_kept_from_it(thinker: Served, path: str, fields: Any) -> None:
    reasoning, text = answered(thinker, path, **fields)
    assert not reasoning and text
    assert answered(thinker, path)[0]


def test_a_schema_holds_behind_reasoning_that_was_closed(thinker: Served) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"enum": ["yes", "no"]}}}
    for fields in ({"reasoning_effort": "none"}, {"chat_template_kwargs": {"thinking_budget": 5}}):
        assert answered(thinker, CHAT, response_format=schema, **fields)[1] in ('"yes"', '"no"')


def test_who_never_thinks_keeps_every_limit_and_says_so(never: Served) -> None:
    for stream in (False, True):
        fields = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "medium"}}
        response = post(never, MESSAGES, stream=stream, **fields)
        assert (response.status_code, response.headers["x-kvtrie-thinking"]) == (200, "never")
    assert "x-kvtrie-thinking" not in post(never, MESSAGES, thinking={"type": "disabled"}).headers


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs.thinking"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort"),
        (OLLAMA, {"think": "high"}, "think"),
        ("/explain", {"reasoning_effort": "low"}, "reasoning_effort"),
        ("/tokenize", {"reasoning_effort": "low"}, "reasoning_effort"),
    ],
)
def test_what_cannot_be_told_is_refused_by_its_name(never: Served, path: str, fields: Any, param: str) -> None:
    response = post(never, path, **fields)
    assert response.status_code == 400
    said = response.json()["error"]
    assert (said if isinstance(said, str) else said["message"]).startswith(f"{param}: ")


def test_thinking_of_a_prompt_alone() -> None:
    with served(tiny_model(TEMPLATES["word"])) as running:
        tokens = post(running, "/tokenize", reasoning_effort="low").json()["tokens"]
        assert running.engine.model.tokenizer.decode(tokens).startswith("low[user]")
        assert "prompt_tokens" in post(running, "/explain", reasoning_effort="low").json()
    assert thinking_of(tokenizer_of("word"), Asked(), None) == Thinking({})
