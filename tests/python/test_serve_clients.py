"""Clients as they come from PyPI: whole answers, streams, usage, errors, tools, and how they leave."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from processes import PATIENCE
from serving import TINY, Served, served

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")

QUESTION: Any = [{"role": "user", "content": "What is a lock?"}]
KEYS = {"key-a": "a", "key-b": "b"}


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(kv.models.load(TINY), keys=KEYS, temperature=0.0) as running:
        yield running


@pytest.fixture
def client(server: Served) -> Iterator[Any]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="key-a", timeout=PATIENCE, max_retries=0) as made:
        yield made


# --- openai -----------------------------------------------------------------------------------------------------------


def test_openai_lists_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_openai_chats_and_streams(client: Any) -> None:
    whole = client.chat.completions.create(model="tiny", messages=QUESTION, max_completion_tokens=10)
    text = whole.choices[0].message.content
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    again = client.chat.completions.create(model="tiny", messages=QUESTION, max_completion_tokens=10)
    assert again.usage.prompt_tokens_details.cached_tokens == whole.usage.prompt_tokens - 1
    pieces, usage = [], None
    for chunk in client.chat.completions.create(
        model="tiny", messages=QUESTION, max_tokens=10, stream=True, stream_options={"include_usage": True}
    ):
        usage = chunk.usage or usage
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    assert "".join(pieces) == text
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens


def test_openai_parses_what_follows_a_schema(client: Any) -> None:
    import pydantic

    class Size(pydantic.BaseModel):
        cells: int
        shared: bool

    answer = client.chat.completions.parse(
        model="tiny", messages=QUESTION, response_format=Size, max_tokens=200, temperature=1, seed=4
    )
    assert isinstance(answer.choices[0].message.parsed, Size)


def test_openai_completions_with_logprobs(client: Any) -> None:
    answer = client.completions.create(model="tiny", prompt="A cache is", max_tokens=5, logprobs=2)
    assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens


def test_openai_knows_the_errors(server: Served, client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=QUESTION, temperature=9)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="no").models.list()
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="word " * 5000)
    assert long.value.code == "context_length_exceeded"


def test_openai_leaves_a_stream(server: Served, client: Any) -> None:
    before = server.engine.batcher.stats()
    with client.completions.create(
        model="tiny", prompt="A page", max_tokens=900, stream=True, temperature=1, logit_bias={}
    ) as stream:
        next(iter(stream))
    after = server.engine.batcher.stats()
    assert after["submitted"] == before["submitted"] + 1
    assert client.completions.create(model="tiny", prompt="A page", max_tokens=1).usage.completion_tokens == 1


def test_many_asynchronous_clients(server: Served) -> None:
    async def ask(number: int) -> Any:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="key-b", timeout=PATIENCE) as client:
            messages = [{"role": "user", "content": f"{'All share this. ' * 10} What is {number}?"}]
            return await client.chat.completions.create(model="tiny", messages=messages, max_tokens=6)

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*(ask(number) for number in range(12))))

    answers = asyncio.run(all_of_them())
    prompts = sum(answer.usage.prompt_tokens for answer in answers)
    cached = sum(answer.usage.prompt_tokens_details.cached_tokens for answer in answers)
    assert cached > 0.8 * prompts  # what they share was computed once


# --- anthropic --------------------------------------------------------------------------------------------------------


@pytest.fixture
def claude(server: Served) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key="key-a", timeout=PATIENCE, max_retries=0) as made:
        yield made


def test_anthropic_messages_and_streams(claude: Any) -> None:
    system = [{"type": "text", "text": "You explain computers.", "cache_control": {"type": "ephemeral"}}]
    asked = {"model": "tiny", "system": system, "messages": QUESTION, "max_tokens": 10}
    whole = claude.messages.create(**asked)
    assert whole.content[0].type == "text"
    assert whole.stop_reason in ("end_turn", "max_tokens")
    count = claude.messages.count_tokens(model="tiny", system=system, messages=QUESTION).input_tokens
    usage = whole.usage
    assert usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens == count
    with claude.messages.stream(**asked) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        assert stream.get_final_message().usage.cache_read_input_tokens == count - 1


def test_anthropic_lists_models(claude: Any) -> None:
    (listed,) = claude.models.list()
    again = claude.models.retrieve("tiny")
    assert (listed.id, listed.type, listed.display_name) == ("tiny", "model", "tiny") == (again.id, "model", "tiny")
    assert listed.created_at.year >= 2025


def test_anthropic_knows_the_errors(claude: Any) -> None:
    with pytest.raises(anthropic.BadRequestError) as wrong:
        claude.messages.create(model="tiny", messages=QUESTION, max_tokens=4, extra_body={"temperature": 7})
    assert wrong.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="no").messages.create(model="tiny", messages=QUESTION, max_tokens=4)


# --- ollama -----------------------------------------------------------------------------------------------------------


def test_ollama_chats_streams_and_forms(server: Served) -> None:
    ollama = pytest.importorskip("ollama")
    client = ollama.Client(host=server.url, headers={"authorization": "Bearer key-a"}, timeout=PATIENCE)
    assert [model.model for model in client.list().models] == ["tiny"]
    assert "completion" in client.show("tiny").capabilities
    options = {"temperature": 0, "num_predict": 10}
    whole = client.chat("tiny", QUESTION, options=options)
    pieces = [part.message.content for part in client.chat("tiny", QUESTION, options=options, stream=True)]
    assert "".join(pieces) == whole.message.content
    form = {"type": "object", "properties": {"shared": {"type": "boolean"}}, "required": ["shared"]}
    form["additionalProperties"] = False
    formed = client.chat("tiny", QUESTION, format=form, options={"num_predict": 100})
    assert set(json.loads(formed.message.content)) == {"shared"}
    with pytest.raises(ollama.ResponseError) as wrong:
        client.chat("tiny", QUESTION, options={"temperature": -1})
    assert wrong.value.status_code == 400


# --- what is built on them --------------------------------------------------------------------------------------------


def test_langchain(server: Served) -> None:
    langchain = pytest.importorskip("langchain_openai")
    chat = langchain.ChatOpenAI(
        model="tiny", base_url=server.url + "/v1", api_key="key-a", max_tokens=8, temperature=0, stream_usage=True
    )
    whole = chat.invoke("What is a page?")
    assert whole.usage_metadata["output_tokens"] > 0
    pieces = list(chat.stream("What is a page?"))
    assert "".join(piece.content for piece in pieces) == whole.content
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    assert usage[-1]["input_token_details"]["cache_read"] == whole.usage_metadata["input_tokens"] - 1


def in_a_process(code: str, folder: Path, *arguments: str, **environment: str) -> str:
    """What a program of the client's own says: some patch what they import, or warn where they are imported."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, *([] if code == "" else ["-c", code]), *arguments],
        env={**kept, **environment}, cwd=folder, timeout=PATIENCE, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.ci
def test_litellm(server: Served, tmp_path: Path) -> None:
    pytest.importorskip("importlib.metadata").version("litellm")
    code = """
import json, sys, litellm
url = sys.argv[1]
asked = dict(messages=[{"role": "user", "content": "What is a lock?"}], max_tokens=8, temperature=0)
first = litellm.completion("openai/tiny", api_base=url + "/v1", api_key="key-a", **asked)
other = litellm.completion("anthropic/tiny", api_base=url, api_key="key-a", **asked)
pieces = litellm.completion("openai/tiny", api_base=url + "/v1", api_key="key-a", stream=True, **asked)
texts = [first.choices[0].message.content, other.choices[0].message.content]
texts.append("".join(piece.choices[0].delta.content or "" for piece in pieces))
print(json.dumps([texts, first.usage.prompt_tokens, other.usage.prompt_tokens]))
"""
    said = in_a_process(code, tmp_path, server.url, LITELLM_LOCAL_MODEL_COST_MAP="True")
    texts, by_openai, by_anthropic = json.loads(said.splitlines()[-1])
    assert texts[0] == texts[1] == texts[2]
    assert by_openai == by_anthropic


def test_llm(server: Served, tmp_path: Path) -> None:
    pytest.importorskip("importlib.metadata").version("llm")
    settings = f"- model_id: here\n  model_name: tiny\n  api_base: {server.url}/v1\n  api_key_name: here\n"
    (tmp_path / "extra-openai-models.yaml").write_text(settings)
    (tmp_path / "keys.json").write_text(json.dumps({"here": "key-a"}))
    asked = ["-m", "llm", "-m", "here", "-o", "max_tokens", "8", "-o", "temperature", "0"]
    first = in_a_process("", tmp_path, *asked, "What is a lock?", LLM_USER_PATH=str(tmp_path))
    assert first.strip()
    again = in_a_process("", tmp_path, *asked, "-c", "And a page?", LLM_USER_PATH=str(tmp_path))
    assert again.strip()
    entry = server.engine.journal.entries[-1]
    assert entry.reused > 10  # the conversation before
