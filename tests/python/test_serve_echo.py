"""What a model gives the tokens of a prompt: beside transformers, however it is cut, and as clients read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import kvtrie as kv
from bounds import LOGPROBS, close
from kvtrie.sampling import log_softmax
from processes import PATIENCE, wait_for
from serving import TINY, Served, served

GOLDENS = Path(__file__).parent / "goldens"
PROMPT = "A cache keeps what was computed, so that nobody computes it again."
TEXT = "/v1/completions"


def cache_of(model: Any) -> kv.PrefixCache:
    return kv.PrefixCache(model.caches(capacity=512, dtype="float32"), fingerprint=model.fingerprint)


# ---- in a batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama-gqa-tied", "qwen3-next-sparse-bias", "gemma3-window-softcap"])
@pytest.mark.parametrize("chunk", [7, 64])
def test_they_are_those_of_transformers(name: str, chunk: int) -> None:
    """Their logits of one forward pass (make_goldens.py), as log-probabilities."""
    tokens, wanted = np.load(GOLDENS / "tokens.npy"), np.load(GOLDENS / name / "logits.npy")
    model = kv.models.load(GOLDENS / name, dtype="float32")
    with cache_of(model) as cache, kv.Batcher(model, cache, chunk=chunk, stall=None) as batcher:
        beside = [batcher.submit(tokens[::-1].copy(), 4, namespace="other", ignore_eos=True) for _ in range(2)]
        request = batcher.submit(tokens, 1, prompt_logprobs=3, ignore_eos=True)
        request.result(PATIENCE)
        assert beside[0].result(PATIENCE) == beside[1].result(PATIENCE)
        found = request.prompt_logprobs
    rows = [log_softmax(row) for row in wanted[: len(tokens) - 1].astype(np.float32)]
    assert [each.logprob.token for each in found] == tokens[1:].tolist()
    close([each.logprob.logprob for each in found], [row[token] for row, token in zip(rows, tokens[1:])], LOGPROBS)
    close([each.logprob.top[0][1] for each in found], [row.max() for row in rows], LOGPROBS)
    for each in found:
        values = dict(each.logprob.top)
        assert len(values) == 3 and (each.rank <= 3) == (each.logprob.token in values)


def test_what_is_known_is_computed_again() -> None:
    model = kv.models.load(TINY)
    tokens = model.tokenizer.encode(PROMPT)
    with cache_of(model) as cache, kv.Batcher(model, cache) as batcher:
        batcher.submit(tokens, 1).result(PATIENCE)
        told = [batcher.submit(tokens, 1, prompt_logprobs=0) for _ in range(2)]
        assert told[0].result(PATIENCE) == told[1].result(PATIENCE) == batcher.submit(tokens, 1).result(PATIENCE)
        assert told[0].prompt_logprobs == told[1].prompt_logprobs
        assert [(request.reused, len(request.prompt_logprobs)) for request in told] == [(0, len(tokens) - 1)] * 2
        with pytest.raises(kv.errors.ArgumentError, match="prompt_logprobs: got -1"):
            batcher.submit(tokens, 1, prompt_logprobs=-1)
        assert batcher.submit(tokens, 1).prompt_logprobs == []


def test_giving_room_back_changes_nothing() -> None:
    """All of it is computed again, which says the same."""
    model = kv.models.load(TINY)
    prompts = [model.tokenizer.encode(f"{number} {PROMPT}") for number in range(3)]
    length = max(map(len, prompts))

    def told(capacity: int) -> Any:
        caches = model.caches(capacity=capacity, dtype="float32")
        with kv.PrefixCache(caches) as cache, kv.Batcher(model, cache, chunk=8) as batcher:
            requests = [batcher.submit(tokens, 24, prompt_logprobs=1, ignore_eos=True) for tokens in prompts]
            for request in requests:
                request.result(PATIENCE)
            return [(request.tokens, request.prompt_logprobs) for request in requests]

    assert told(length + 30) == told(4 * (length + 30))


# ---- over HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(kv.models.load(TINY), temperature=0.0) as running:
        yield running


def asked(server: Served, **fields: Any) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": 4, "ignore_eos": True, **fields}
    return httpx.post(server.url + TEXT, json=body, timeout=PATIENCE)


def choices(server: Served, **fields: Any) -> Any:
    response = asked(server, **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def ids(server: Served, text: str = PROMPT) -> list[int]:
    return list(server.engine.model.tokenizer.encode(text))


def scores(server: Served, tokens: list[int]) -> list[float]:
    """By another way: each token behind the first."""
    model = server.engine.model
    with kv.PrefixCache(model.caches(capacity=512)) as cache:  # of cells as the server's
        (score,) = kv.score(model, tokens[:1], [tokens[1:]], cache=cache)
    return score.logprobs


def test_a_prompt_is_given_back_with_its_logprobs_whatever_is_known(server: Served) -> None:
    """lm-eval's question: one token more than it wants, and the likeliest of each."""
    plain = choices(server, logprobs=1)[0]
    whole = ids(server)
    wanted = scores(server, whole)
    for prompt in (PROMPT, whole):
        (told,) = choices(server, prompt=prompt, echo=True, logprobs=1)
        assert told["text"] == PROMPT + plain["text"]
        lists = told["logprobs"]
        count = len(whole)
        assert {len(each) for each in lists.values()} == {count + 4}
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        close(lists["token_logprobs"][1:count], wanted, LOGPROBS, each=True)
        assert "".join(lists["tokens"]) == told["text"]
        assert lists["text_offset"] == [len("".join(lists["tokens"][:at])) for at in range(count + 4)]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert lists[name][count:] == plain["logprobs"][name]


def test_nothing_of_it_is_kept_and_nothing_reused(server: Served) -> None:
    choices(server)
    wait_for(server.is_idle)
    before = server.engine.cache.stats()["tokens"]
    usage = asked(server, echo=True, logprobs=0).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (len(ids(server)), 0)
    wait_for(lambda: server.engine.cache.stats()["tokens"] == before)
    assert asked(server, echo=True).json()["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


@pytest.mark.parametrize("most", [0, 1])
def test_several_prompts_at_once(server: Served, most: int) -> None:
    """They begin alike, and none of them goes on from what another one computes."""
    prompts = [ids(server, PROMPT + end) for end in (" Yes.", " No.", " Never mind.")]
    told = choices(server, prompt=prompts, echo=True, logprobs=2, max_tokens=most, n=2)
    assert [each["index"] for each in told] == list(range(6))
    for each, prompt in zip(told, [prompt for prompt in prompts for _ in range(2)]):
        lists = each["logprobs"]
        assert len(lists["token_logprobs"]) == len(prompt) + most
        close(lists["token_logprobs"][1 : len(prompt)], scores(server, prompt), LOGPROBS, each=True)
        assert all(len(top) == 2 for top in lists["top_logprobs"][1:])
        assert each["text"].startswith(server.engine.model.tokenizer.decode(prompt))
        assert each["finish_reason"] == "length"


@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_stream_says_the_same(server: Served, most: int, logprobs: Any) -> None:
    fields = {"echo": True, "logprobs": logprobs, "max_tokens": most, "n": 2}
    whole = choices(server, **fields)
    lines = asked(server, **fields, stream=True).text.split("\n\n")
    parts = [json.loads(line[6:])["choices"][0] for line in lines if line.startswith("data: {")]
    for each in whole:
        own = [part for part in parts if part["index"] == each["index"]]
        assert "".join(part["text"] for part in own) == each["text"]
        told = [part["logprobs"] for part in own if part["logprobs"] is not None]
        for name, values in (each["logprobs"] or {}).items():
            assert [value for part in told for value in part[name]] == values


def test_of_a_prompt_as_vllm_has_them(server: Served) -> None:
    (told,) = choices(server, prompt_logprobs=2, logprobs=1)
    whole = ids(server)
    assert told["prompt_logprobs"][0] is None and len(told["prompt_logprobs"]) == len(whole)
    assert len(told["logprobs"]["tokens"]) == 4  # the answer's alone
    for token, entry, wanted in zip(whole[1:], told["prompt_logprobs"][1:], scores(server, whole)):
        own = entry[str(token)]
        close(own["logprob"], wanted, LOGPROBS, each=True)
        assert own["decoded_token"] == server.engine.model.tokenizer.decode([token])
        assert {1, 2} <= {each["rank"] for each in entry.values()} and len(entry) in (2, 3)
    response = asked(server, prompt_logprobs=2, stream=True)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
    for fields in ({"echo": True}, {"prompt_logprobs": 1}):
        chat = {"messages": [{"role": "user", "content": "q"}], **fields}
        response = httpx.post(server.url + "/v1/chat/completions", json=chat, timeout=PATIENCE)
        assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(fields)))


def test_what_a_tokenizer_puts_in_front_takes_no_characters(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    added = ids(server, "Z")
    monkeypatch.setitem(server.engine.model.tokenizer.__dict__, "ends", (added, []))
    (told,) = choices(server, echo=True, logprobs=0, max_tokens=0)
    assert told["text"] == PROMPT
    assert told["logprobs"]["text_offset"][:2] == [0, 0]
    assert "".join(told["logprobs"]["tokens"][len(added) :]) == PROMPT
