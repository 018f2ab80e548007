"""Agents on one long system prompt, sub-agents and title generators in between: what is computed is new.

The prompts are what such clients send: every turn the whole conversation again, a sub-agent with a short system prompt
of its own, a title generator that quotes the question. The device has room for one system prompt and the agents' own
words; host memory has the rest.
"""

from __future__ import annotations

import json
import random
import threading
from typing import Any

import httpx

import kvtrie as kv
from circles import SOAK
from naming_model import NamingModel
from processes import PATIENCE
from serving import TINY, Served, served

AGENTS, TURNS = (8, 20) if SOAK else (4, 6)
TOOL = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def words(seed: int, count: int) -> str:
    numbers = random.Random(seed)
    return " ".join(
        numbers.choice(("page", "lock", "cell", "tree", "node", "disk", "row", "key")) for _ in range(count)
    )


SYSTEM = "You are an agent with tools. " + json.dumps(TOOL) + words(0, 6000)


class Counts:
    """Tokens of all prompts, and those of them that were known."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._lock = threading.Lock()
        self.prompts = self.known = self.requests = 0

    def ask(self, messages: list[Any], most: int) -> Any:
        body = {"messages": messages, "max_tokens": most, "temperature": 0}
        response = httpx.post(self._server.url + "/v1/chat/completions", json=body, timeout=PATIENCE)
        assert response.status_code == 200, response.text
        answer = response.json()
        usage = answer["usage"]
        with self._lock:
            self.requests += 1
            self.prompts += usage["prompt_tokens"]
            self.known += usage["prompt_tokens_details"]["cached_tokens"]
        return answer


class Agent(threading.Thread):
    """``new``: tokens that nobody had asked or been told before, counted from the lengths of its own conversations."""

    def __init__(self, number: int, counts: Counts, lengths: Any) -> None:
        super().__init__()
        self._number, self._counts, self._length = number, counts, lengths
        self.new = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.error = error

    def _run(self) -> None:
        messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        said = self._length(messages)  # the test counts them, once for all agents
        for turn in range(TURNS):
            question = words(1000 * self._number + turn + 1, 12)
            messages.append({"role": "user", "content": question})
            said = self._turn(messages, said, 16)
            if turn % 5 == 0:
                self._beside("Write a title of three words.", question, turn)
            if turn % 7 == 3:
                self._beside("You are a sub-agent that looks for files.", words(turn + 77 * self._number, 30), turn)

    def _turn(self, messages: list[Any], said: int, most: int) -> int:
        """One answer; the tokens of what was said by now."""
        answer = self._counts.ask(messages, most)
        self.new += answer["usage"]["prompt_tokens"] - said
        messages.append(answer["choices"][0]["message"])
        return int(answer["usage"]["total_tokens"])

    def _beside(self, system: str, text: str, turn: int) -> None:
        messages = [{"role": "system", "content": system}]
        said = self._length(messages) if (self._number, turn) != (0, 0) else 0
        self._turn([*messages, {"role": "user", "content": f"{self._number} {turn} {text}"}], said, 8)


def test_agents_compute_what_is_new() -> None:
    model = NamingModel(kv.models.load(TINY), check=False)
    tokenizer = model.tokenizer

    def length(messages: list[Any]) -> int:
        return len(tokenizer.apply_chat_template(messages))

    system = length([{"role": "system", "content": SYSTEM}])
    capacity = system + AGENTS * 500
    cache = kv.PrefixCache(model.caches(capacity=capacity), fingerprint="naming", host_bytes=1 << 24)
    with served(model, context=system + 2000, cache=cache, max_sessions=4) as server:
        counts = Counts(server)
        agents = [Agent(number, counts, length) for number in range(AGENTS)]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.join(PATIENCE)
        assert [agent.error for agent in agents] == [None] * AGENTS
        new = system + sum(agent.new for agent in agents)
        computed = counts.prompts - counts.known
        print(f"{counts.requests} requests, {counts.prompts:,} prompt tokens, {new:,} new, {computed:,} computed")
        assert computed <= 1.02 * new
        assert cache.check() == []


def test_fifty_turns_of_answers_that_a_tokenizer_cuts_differently() -> None:
    """Of an answer that ended nothing is computed again in the next turn, but for its end, which never was.

    One that was cut off may lose what a tokenizer puts together across the cut.
    """
    model = NamingModel(kv.models.load(TINY), check=False, ends=16)
    cache = kv.PrefixCache(model.caches(capacity=8000), fingerprint="naming")
    messages: list[Any] = [{"role": "user", "content": words(1, 5)}]
    with served(model, context=6000, cache=cache) as server:
        counts = Counts(server)
        said = otherwise = 0
        lost: dict[str, list[int]] = {"stop": [], "length": []}
        ended = "stop"
        for turn in range(50):
            before = counts.known
            answer = counts.ask(messages, 24)
            lost[ended].append(max(0, said - 1 - (counts.known - before)))
            said, ended = answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]
            message = answer["choices"][0]["message"]
            anew = len(model.tokenizer.encode(message["content"], add_special_tokens=False))
            otherwise += anew != answer["usage"]["completion_tokens"] - (ended == "stop")
            messages += [message, {"role": "user", "content": words(turn + 2, 5)}]
    print(f"{otherwise} answers would be other tokens, were they tokenized anew; computed again: {lost}")
    assert min(len(lost["stop"]), len(lost["length"])) >= 5
    assert sum(lost["stop"]) == 0
    assert sum(lost["length"]) <= len(lost["length"])
    assert otherwise > 15
