"""Drafts in the server: what is guessed never shows in an answer, in another tenant's steps, or in anything but counts.

And predicted outputs: a text that the client expects is followed through edits, and counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import kvtrie as kv
from kvtrie._drafting import Costs
from kvtrie.serve.predictions import PredictedText, Prediction
from naming_model import NamingModel
from processes import PATIENCE
from serving import TINY, Served, serve, served

QUESTION = [{"role": "user", "content": "What is a cache?"}]
KEYS = {"key-a": "a", "key-b": "b"}
CHAT = "/v1/chat/completions"


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are as many as there may be, whatever they cost."""
    monkeypatch.setattr(Costs, "shares", lambda _self, _chances, limits, *_: list(limits))


@pytest.fixture(scope="module")
def model() -> Any:
    return kv.models.load(TINY)


@pytest.fixture(scope="module")
def plain(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0) as running:
        yield running


@pytest.fixture
def drafting(model: Any) -> Iterator[Served]:
    with served(model, temperature=0.0, draft=("prompt", "tree")) as running:
        yield running


def post(server: Served, path: str, body: Any, key: str | None = None) -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    response = httpx.post(server.url + path, json=body, headers=headers, timeout=PATIENCE)
    assert response.status_code == 200, response.text
    return response.json()


def chat(server: Served, **fields: Any) -> Any:
    return post(server, CHAT, {"messages": QUESTION, "max_tokens": 40, **fields})


def predicted(text: Any) -> dict[str, Any]:
    return {"type": "content", "content": text}


def answer_of(said: Any) -> list[Any]:
    return [(each["message"], each["finish_reason"], each["logprobs"]) for each in said["choices"]]


# ---- the same answers ------------------------------------------------------------------------------------------------

SCHEMA = {"type": "object", "properties": {"word": {"type": "string", "maxLength": 12}}, "required": ["word"]}
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1, "seed": 7},
    "n": {"temperature": 1, "seed": 7, "n": 3},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "penalties": {"frequency_penalty": 1.0, "presence_penalty": 0.5},
    "stop": {},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    "regex": {"guided_regex": "(yes|no|maybe)( and (yes|no|maybe)){3}"},
    "no cache": {"cache_prompt": False},
}


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_those_without_drafts(plain: Served, drafting: Served, way: str) -> None:
    """The first time and again, when the tree knows the answer; with a prediction, too."""
    options = dict(WAYS[way])
    if way == "stop":  # a text in the middle of the answer
        options["stop"] = [chat(plain)["choices"][0]["message"]["content"][40:44]]
    without = answer_of(chat(plain, **options))
    text = str(without[0][0]["content"])
    asked: list[dict[str, Any]] = [
        {}, {}, {"prediction": predicted(text)}, {"prediction": predicted(text[: len(text) // 2] + "?" + text)},
    ]  # fmt: skip
    for more in asked:
        assert answer_of(chat(drafting, **options, **more)) == without
        assert answer_of(chat(plain, **options, **more)) == without
    assert drafting.engine.cache.stats()["proposed_tokens"] > 0
    assert drafting.engine.cache.check() == []


def test_streams_are_those_without_drafts(plain: Served, drafting: Served) -> None:
    def streamed(server: Served) -> tuple[list[Any], Any]:
        body = {"messages": QUESTION, "max_tokens": 40, "stream": True, "stream_options": {"include_usage": True}}
        text = chat(plain)["choices"][0]["message"]["content"]
        with httpx.stream(
            "POST", server.url + CHAT, json={**body, "prediction": predicted(text)}, timeout=PATIENCE
        ) as lines:
            events = [json.loads(line[6:]) for line in lines.iter_lines() if line.startswith("data: {")]
        return [choice for event in events for choice in event["choices"]], events[-1]["usage"]

    choices, usage = streamed(plain)
    again, counted = streamed(drafting)
    assert again == choices
    assert counted["completion_tokens_details"] == usage["completion_tokens_details"]
    assert counted["completion_tokens_details"]["accepted_prediction_tokens"] > 0


def test_other_apis_draft_as_well(plain: Served, drafting: Served) -> None:
    bodies = {
        "/v1/completions": {"prompt": "A cache is", "max_tokens": 30},
        "/v1/messages": {"messages": QUESTION, "max_tokens": 30},
        "/v1/responses": {"input": "What is a cache?", "max_output_tokens": 30},
        "/api/chat": {"model": "m", "messages": QUESTION, "stream": False, "options": {"num_predict": 30}},
    }
    said = {"/v1/completions": "choices", "/v1/messages": "content", "/api/chat": "message"}
    for path, body in bodies.items():
        before = drafting.engine.cache.stats()["accepted_tokens"]
        for _ in range(2):
            first, second = post(plain, path, body), post(drafting, path, body)
            if path in said:
                assert first[said[path]] == second[said[path]]
            else:
                assert first["output"][0]["content"] == second["output"][0]["content"]
        assert drafting.engine.cache.stats()["accepted_tokens"] > before, path


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_a_prediction_is_counted(plain: Served) -> None:
    """What the answer has of it, and what not; as often as one asks, and for all choices."""
    text = chat(plain)["choices"][0]["message"]["content"]
    count = len(plain.engine.model.tokenizer.encode(text, add_special_tokens=False, special_tokens="letters"))

    def details(**fields: Any) -> tuple[int, int]:
        usage = chat(plain, **fields)["usage"]["completion_tokens_details"]
        return usage["accepted_prediction_tokens"], usage["rejected_prediction_tokens"]

    for given in (text, [{"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]):
        accepted, rejected = details(prediction=predicted(given))
        assert (accepted + rejected, rejected <= 1) == (count, True)  # the end of the text may be cut differently
    assert details(prediction=predicted(text), n=2) == (2 * accepted, 2 * rejected)
    assert details(prediction=predicted("")) == (0, 0)
    wrong = details(prediction=predicted("0123456789" * 5))
    assert wrong[0] < wrong[1]
    assert "completion_tokens_details" not in chat(plain)["usage"]
    timings = chat(plain, prediction=predicted(text))["timings"]
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert "draft_n" not in chat(plain)["timings"]


def test_drafts_are_counted_in_the_metrics(drafting: Served) -> None:
    def metrics() -> dict[str, float]:
        text = httpx.get(drafting.url + "/metrics", timeout=PATIENCE).text
        pairs = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("kvtrie_draft_")]
        return {name: float(value) for name, value in pairs if not name.endswith("_created")}

    assert metrics() == dict.fromkeys(("kvtrie_draft_proposed_tokens_total", "kvtrie_draft_accepted_tokens_total"), 0.0)
    for _ in range(2):
        chat(drafting)
    stats = drafting.engine.cache.stats()
    assert metrics() == {
        "kvtrie_draft_proposed_tokens_total": stats["proposed_tokens"],
        "kvtrie_draft_accepted_tokens_total": stats["accepted_tokens"],
    }
    assert stats["accepted_tokens"] > 0


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"content": "a"}, "prediction.type"),
        ({"type": "other", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": [{"type": "image_url", "text": "a"}]}, "prediction.content"),
        ({"type": "content", "content": "word " * 2000}, "prediction.content"),
        ({"type": "content", "content": "x" * 100_000}, "prediction.content"),
        ("a", "prediction"),
    ],
)
def test_what_is_no_prediction_is_refused(plain: Served, given: Any, param: str) -> None:
    body = {"messages": QUESTION, "max_tokens": 4, "prediction": given}
    response = httpx.post(plain.url + CHAT, json=body, timeout=PATIENCE)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(param), response.text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_other_apis_have_no_prediction(plain: Served, path: str) -> None:
    """It is refused by its name: nobody waits for a guess that is not made."""
    body = {"messages": QUESTION, "max_tokens": 4, "prompt": "A"} if path != "/v1/responses" else {"input": "A"}
    body = {name: value for name, value in body.items() if name != ("messages" if "comp" in path else "prompt")}
    response = httpx.post(plain.url + path, json={**body, "prediction": predicted("a")}, timeout=PATIENCE)
    assert response.status_code == 400
    assert "prediction" in response.json()["error"]["message"]


def test_the_option_names_drafters() -> None:
    refused = serve("--draft", "prompt,suffixes")
    assert refused.returncode != 0
    assert "[serve] --draft: got 'suffixes', allowed prompt, tree" in refused.stdout + refused.stderr


# ---- tenants ---------------------------------------------------------------------------------------------------------


def of_tenant_a(others_said: bool, draft: tuple[str, ...]) -> dict[str, Any]:
    """What can be counted of the answers to one tenant, where another one has said the same before, or not."""
    model = NamingModel(kv.models.load(TINY))
    cache = kv.PrefixCache(model.caches(capacity=4000), fingerprint="naming", host_bytes=1 << 18)
    with served(model, context=512, cache=cache, keys=KEYS, temperature=0.0, draft=draft) as server:
        prompts = [f"text {number} of some that are alike, and are alike" for number in range(3)]
        own = [model.answer("a", model.tokenizer.encode(each), 30) for each in prompts]
        if others_said:
            for each in prompts:  # what "a" is to say, and what "b" is said to, stand in the tree of "b"
                post(server, "/v1/completions", {"prompt": each, "max_tokens": 30}, "key-b")
                for known in own:
                    post(server, "/v1/completions", {"prompt": each + known, "max_tokens": 1}, "key-b")
        before, counts = cache.stats(), []
        for number in (0, 1, 2, 0):
            said = post(server, "/v1/completions", {"prompt": prompts[number], "max_tokens": 30}, "key-a")
            assert said["choices"][0]["text"] == own[number]
            timings = {name: value for name, value in said["timings"].items() if not name.endswith("_ms")}
            counts.append((said["usage"], timings))
        after = cache.stats()
        names = ("steps", "proposed_tokens", "accepted_tokens", "matched_tokens", "reused_tokens")
        return {"requests": counts, **{name: after[name] - before[name] for name in names}}


@pytest.mark.parametrize("draft", [("tree",), ("prompt",), ("suffix",), ("prompt", "tree", "suffix")])
def test_nothing_of_another_tenant_can_be_counted(draft: tuple[str, ...]) -> None:
    """Neither drafts nor steps nor rows tell whether another tenant said the same; so no clock does either."""
    alone = of_tenant_a(False, draft)
    assert of_tenant_a(True, draft) == alone
    if draft != ("prompt",):
        assert alone["accepted_tokens"] > 0  # its own answer, asked for again


# ---- a text that is followed -----------------------------------------------------------------------------------------


def naive_places(text: list[int], answer: list[int]) -> tuple[int | None, set[int]]:
    """By the words of predictions.py, with every place looked at."""
    place, guesses, appeared = 0, 0, set[int]()
    for count in range(1, len(answer) + 1):
        said = answer[:count]
        lost = guesses >= 8
        if not lost and place < len(text) and text[place] == said[-1]:
            found, length = place + 1, 1
        else:
            near = place + 1
            pairs = [at for at in range(2, len(text) + 1) if count > 1 and text[at - 2 : at] == said[-2:]]
            pairs = sorted(pairs, key=lambda at: abs(at - near))[:8]
            lengths = []
            for at in pairs:
                length = 2
                while length < min(at, count, 64) and text[at - 1 - length] == said[-1 - length]:
                    length += 1
                lengths.append(length)
            close = [at for at in range(1, len(text) + 1) if abs(at - near) <= 16 and text[at - 1] == said[-1]]
            if pairs:
                length = max(lengths)
                found = pairs[lengths.index(length)]
            elif close and not lost:
                found, length = min(close, key=lambda at: abs(at - near)), 1
            else:
                place, guesses = (place, guesses) if lost else (near, guesses + 1)
                continue
        place, guesses = found, 0
        appeared |= set(range(place - length, place))
    return (None if guesses >= 8 else place), appeared


def test_a_text_is_followed_as_it_is_described() -> None:
    """Against a naive reading, in texts of few letters and of many, edited at random."""
    print("seed 42")
    random = np.random.default_rng(42)
    for letters in (2, 5, 40):
        for _ in range(25):
            text = random.integers(0, letters, int(random.integers(0, 80))).tolist()
            answer = list(text)
            for _ in range(int(random.integers(0, 6))):
                at, kind = int(random.integers(0, len(answer) + 1)), int(random.integers(0, 3))
                answer[at : at + (kind > 0) * 3] = random.integers(0, letters, (kind < 2) * 2).tolist()
            answer += random.integers(0, letters, 20).tolist()
            known = PredictedText(text)
            prediction, prompt = Prediction(known, 3), [90, 91, 92]
            end = 0
            while end < len(answer):
                end += int(random.integers(1, 5))
                drafts = prediction(np.asarray([*prompt, *answer[:end]], np.int32), 6)
                place, appeared = naive_places(text, answer[:end])
                assert drafts == ([] if place is None else text[place : place + 6])
                assert prediction.counts(answer[:end]) == (len(appeared), len(text) - len(appeared))
            drafts = prediction(np.asarray([*prompt, *answer[:5]], np.int32), 6)  # from its beginning again
            place, _ = naive_places(text, answer[:5])
            assert drafts == ([] if place is None else text[place : place + 6])


def test_an_edit_is_followed() -> None:
    """A name is replaced throughout, by one token and by two, and a line is left out: little of the rest is lost."""
    text = [token for line in range(40) for token in (7, 100 + line, 9, 200 + line, 5)]
    for edited in ([8], [8, 8], []):
        answer = [each for token in text[:50] + text[60:] for each in (edited if token == 9 else [token])]
        prediction, wrong, tokens = Prediction(PredictedText(text), 0), 0, 0
        while tokens < len(answer):
            drafts = prediction(np.asarray(answer[:tokens], np.int32), 4)
            right = next((at for at, (a, b) in enumerate(zip(drafts, answer[tokens:])) if a != b), len(drafts))
            wrong += right < len(drafts)
            tokens += right + 1
        assert wrong <= 3 * 40
        accepted, rejected = prediction.counts(answer)
        assert accepted >= len(text) - 10 - 2 * 40
        assert accepted + rejected == len(text)
