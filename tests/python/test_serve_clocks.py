"""The time that a template writes: held still by conversation, or altogether; and who is told where it is not."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import httpx
import pytest

import kvtrie as kv
from kvtrie.ray.scale.prompt_keys import PromptKeys
from kvtrie.serve import clocks
from kvtrie.serve.asked_for import namespace_of
from kvtrie.serve.clocks import ADVICE, Clocks, writes_time
from processes import PATIENCE
from serving import Served, served, tiny_model

TEMPLATE = (
    "A server of many words, as it always was. Today is {{ strftime_now('%d %B %Y, %H:%M') }}."
    "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}[assistant]"
)
QUESTION: list[Any] = [{"role": "user", "content": "What is a cache?"}]
GOES_ON = [
    *QUESTION,
    {"role": "assistant", "content": "A store."},
    {"role": "user", "content": "And then, what is it for?"},
]
BEGAN = datetime.datetime(2026, 11, 27, 23, 59)


class Time:
    """One that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = BEGAN
        self.ticks = 0.0

    def move(self, seconds: float) -> None:
        self.now += datetime.timedelta(seconds=seconds)
        self.ticks += seconds

    def clocks(self, frozen: str | None) -> Clocks:
        return Clocks(frozen, lambda: self.now, lambda: self.ticks)


def test_a_conversation_keeps_its_time() -> None:
    time = Time()
    held = time.clocks("conversation")
    system = {"role": "system", "content": "Short."}
    assert held.at("a", QUESTION) == BEGAN
    time.move(3600)
    assert held.at("a", GOES_ON) == BEGAN
    assert held.at("b", GOES_ON) == held.at("a", [system, *GOES_ON]) == time.now
    time.move(clocks.FORGOTTEN - 1)
    assert held.at("a", GOES_ON) == BEGAN  # its last request was less than a day ago
    time.move(clocks.FORGOTTEN)
    assert held.at("a", GOES_ON) == time.now


def test_what_is_not_kept_is_not_remembered() -> None:
    time = Time()
    held, alone = time.clocks("conversation"), namespace_of("a", None, alone=True)
    assert held.at(alone, QUESTION) == BEGAN
    time.move(60)
    assert held.at("a", QUESTION) == time.now
    time.move(60)
    assert held.at(alone, GOES_ON) == BEGAN + datetime.timedelta(seconds=60)
    runs = time.clocks(None)
    assert not runs.has_changed(alone, QUESTION, ("a",)) and not runs.has_changed("a", QUESTION, ("b",))


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "MOST", 3)
    time = Time()
    held, runs = time.clocks("conversation"), time.clocks(None)
    for number in range(4):
        held.at(str(number), QUESTION)
        runs.has_changed(str(number), QUESTION, ("a",))
        time.move(1)
    assert held.at("1", QUESTION) == BEGAN + datetime.timedelta(seconds=1)
    assert held.at("0", QUESTION) == time.now
    assert not runs.has_changed("0", QUESTION, ("b",))
    assert runs.has_changed("3", QUESTION, ("b",))


def test_one_time_for_all() -> None:
    time = Time()
    began, day, runs = time.clocks("start"), time.clocks("2026-01-02"), time.clocks(None)
    time.move(60)
    assert began.at("a", QUESTION) == BEGAN
    assert day.at("a", QUESTION) == datetime.datetime(2026, 1, 2)
    assert runs.at("a", QUESTION) == time.now
    assert [each.runs for each in (began, day, runs)] == [False, False, True]
    with pytest.raises(
        kv.errors.ArgumentError, match=r"--freeze-clock: got 'never', allowed conversation, start, or a day"
    ):
        Clocks("never")


def reused(server: Served, messages: Any) -> int:
    body = {"messages": messages, "max_tokens": 1}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return int(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def explained(server: Served, messages: Any) -> Any:
    return httpx.post(server.url + "/explain", json={"messages": messages}, timeout=PATIENCE).json()


@pytest.mark.parametrize("frozen", [None, "conversation", "start"])
def test_what_it_is_worth(frozen: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    monkeypatch.setattr(clocks.Clocks.__init__, "__defaults__", (None, lambda: time.now, lambda: time.ticks))
    caplog.set_level(logging.WARNING, "kvtrie.serve")
    with served(tiny_model(TEMPLATE), temperature=0.0, freeze_clock=frozen) as server:
        reused(server, QUESTION)
        first = explained(server, QUESTION)["prompt_tokens"]
        assert explained(server, GOES_ON)["advice"] == []
        time.move(120)
        found = explained(server, GOES_ON)
        count = reused(server, GOES_ON)
    if frozen is None:
        assert count < first - 20 and ADVICE in found["advice"] and ADVICE in found["text"]
        assert [ADVICE in record.message for record in caplog.records].count(True) == 1
    else:
        assert count >= first and ADVICE not in found["text"] and ADVICE not in caplog.text


def test_other_differences_are_not_the_clocks() -> None:
    with served(tiny_model(TEMPLATE), temperature=0.0) as server:
        reused(server, QUESTION)
        found = explained(server, [{"role": "user", "content": "What was a cache?"}])
        assert found["end"] == "differs" and found["advice"] == [each for each in found["advice"] if each != ADVICE]


def test_who_writes_the_time_and_who_routes_by_it() -> None:
    tokenizer = tiny_model(TEMPLATE).tokenizer
    assert writes_time(tokenizer) and not writes_time(tiny_model("{{ messages[0].content }}").tokenizer)
    keys = PromptKeys(tokenizer, freeze_clock="2026-01-02")
    key = keys.of("/v1/messages", b'{"messages": [{"role": "user", "content": "q"}], "max_tokens": 1}', "default")
    assert "02 January 2026, 00:00" in key.text
