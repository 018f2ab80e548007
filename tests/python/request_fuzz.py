"""Requests at random: by the schemas of the routes, and beside them; what an application answers, and how soon.

    ./dev run python tests/python/request_fuzz.py --requests 100000 --seed 1

Most bodies are what a schema allows; some have a value replaced, left out or wrapped, a field of the tables in
fields.py or of no table, or are no JSON. The application is called in this process, without sockets, several requests
at a time. What is wrong: a status that says the server failed, an answer that is no JSON or a stream that does not
end, an error without words. Each request follows from the seed and its number alone.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import functools
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

import kvtrie as kv
from kvtrie.ray.scale.asgi_call import Call, Head, answered
from kvtrie.serve.anthropic_schema import CountRequest, MessagesRequest
from kvtrie.serve.app import create_app
from kvtrie.serve.fields import HARMLESS, REFUSED
from kvtrie.serve.ollama_schema import ChatAsked, GenerateAsked
from kvtrie.serve.openai_schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ExplainRequest,
    TokenizeRequest,
)
from kvtrie.serve.responses_schema import PromptRequest, ResponseRequest
from kvtrie.serve.settings import Settings
from processes import PATIENCE
from serving import tiny_model

ROUTES: Mapping[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/messages": MessagesRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": PromptRequest,
    "/api/chat": ChatAsked,
    "/api/generate": GenerateAsked,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    "/explain": ExplainRequest,
}
TEMPLATE = (
    "{% if tools %}[tools]{{ tools | tojson }};{% endif %}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
    '{% for call in m.tool_calls or [] %}<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %};{% endfor %}{{ reasoning_effort }}"
    "{% if add_generation_prompt %}[assistant]{% if enable_thinking %}<think>{% endif %}{% endif %}"
)
TEXTS = (
    "", "a", "A cache", "  ", "\n", "é☃", "\u0000", "\ud800", "\u2028", "<|im_end|>", "</think>", "<think>",
    "<tool_call>", '{"a": 1}', "tools", "x" * 300, "-1", "1e999", "null", "../..", "%s%n", "user", "high", "none",
    "json",
)  # fmt: skip
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, -0.0, 1e308, 2**31, 2**63, -(2**63), 2**200, float("nan"), float("inf"), [], {},
    [[]], [None], {"": None}, {"a": {"b": [1, {"c": "d"}]}}, [1, "a", None, {}], *TEXTS,
)  # fmt: skip
SCHEMAS: tuple[Any, ...] = ({}, {"type": "object"}, {"enum": ["yes", "no"]}, {"type": "strin"}, {"type": "array"})
POOLS: Mapping[str, tuple[Any, ...]] = {  # each grammar that is new takes a process
    "guided_regex": ("a+", "(", "", "yes|no"),
    "regex": ("a+", "[", "yes|no"),
    "guided_grammar": ('root ::= "a"', "no grammar"),
    "grammar": ('start: "a"', "root ::= missing", 'root ::= "a"+'),
    "ebnf": ('root ::= "a"', 'item ::= "b"'),
    "guided_json": SCHEMAS,
    "json_schema": SCHEMAS,
    "schema": SCHEMAS,
    "json": SCHEMAS,
    "format": (*SCHEMAS, "json", ""),
    "parameters": SCHEMAS,
    "input_schema": SCHEMAS,
    "input": (
        "A cache",
        "é",
        [{"role": "user", "content": "What is it?"}],
        [{"type": "item_reference", "id": "x"}],
        [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "5"},
        ],
    ),
    "role": ("user", "assistant", "system", "tool", "user"),
    "max_tokens": (0, 1, 2, 5, 5, -1, 300),
    "max_completion_tokens": (0, 1, 3),
    "max_output_tokens": (1, 3, 0),
    "temperature": (0, 0.5, 1, 2, 2.1, -1),
    "n": (1, 2, 16, 17, 0),
}
STATUSES = {200, 400, 404, 413, 415, 429, 503}


@functools.cache
def _schema_of(kind: type[BaseModel]) -> Any:
    return kind.model_json_schema()


class Bodies:
    """Of one request: ``dice`` decides everything."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice

    def body(self, kind: type[BaseModel]) -> Any:
        """What a schema allows, or nearly: half of all have few fields, and nothing that is wrong on purpose."""
        clean = self._dice.random() < 0.5
        schema = _schema_of(kind)
        required = schema.get("required", [])
        chosen = {
            name for name in schema["properties"] if name in required or self._dice.random() < (0.05 if clean else 0.15)
        }
        for usual in ("messages", "input") if "input" in schema["properties"] else ("messages", "prompt", "content"):
            if usual in schema["properties"] and (clean or self._dice.random() < 0.9):
                chosen.add(usual)
        body = {name: self._named(name, schema["properties"][name], schema, 5) for name in sorted(chosen)}
        if clean:
            return body
        if self._dice.random() < 0.2:
            body[self._other_name()] = self._any(HOSTILE)
        for _ in range(self._dice.choice([0, 0, 0, 1, 1, 2])):
            self._hurt(body)
        return body

    def _any(self, values: Sequence[Any]) -> Any:
        """A copy, as it may be changed."""
        return copy.deepcopy(self._dice.choice(values))

    def _other_name(self) -> str:
        row = self._dice.choice([*HARMLESS, *REFUSED])
        return self._dice.choice([*row.names.split(), "never_heard_of"])

    def _named(self, name: str, schema: Any, root: Any, depth: int) -> Any:
        if name in POOLS and self._dice.random() < 0.9:
            return self._any(POOLS[name])
        return self.value(schema, root, depth)

    def value(self, schema: Any, root: Any, depth: int) -> Any:
        """One that ``schema`` allows, as far as it says."""
        if "$ref" in schema:
            return self.value(root["$defs"][schema["$ref"].rpartition("/")[2]], root, depth)
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(self._dice.choice(schema[several]), root, depth)
        if "const" in schema or "enum" in schema:
            return schema.get("const", self._dice.choice(schema.get("enum", [None])))
        make: dict[str, Callable[[], Any]] = {
            "null": lambda: None,
            "boolean": lambda: self._dice.random() < 0.5,
            "integer": lambda: self._number(schema, 1),
            "number": lambda: self._number(schema, 0.1),
            "string": lambda: self._dice.choice(TEXTS),
            "array": lambda: self._array(schema, root, depth),
            "object": lambda: self._object(schema, root, depth),
        }
        return make.get(schema.get("type", ""), lambda: self._any(HOSTILE))()

    def _number(self, schema: Any, step: float) -> Any:
        least, most = schema.get("minimum", schema.get("exclusiveMinimum", -2)), schema.get("maximum", 4)
        picked = self._dice.choice([least, most, 0, 1, 2, 100])
        if self._dice.random() < 0.9:
            picked = min(max(picked, least), most)
        return picked if step == 1 else picked + self._dice.choice([0, 0.1])

    def _array(self, schema: Any, root: Any, depth: int) -> Any:
        if depth <= 0:
            return []
        count = max(self._dice.choice([0, 1, 1, 2, 3]), schema.get("minItems", 0))
        return [self.value(schema.get("items", {}), root, depth - 1) for _ in range(count)]

    def _object(self, schema: Any, root: Any, depth: int) -> Any:
        parts, required = schema.get("properties", {}), schema.get("required", [])
        if not parts:
            return self._any(({}, {"a": 1}, {"type": "object"}, {"5": 1}))
        return {
            name: self._named(name, part, root, depth - 1)
            for name, part in parts.items()
            if name in required or (depth > 0 and self._dice.random() < 0.3)
        }

    def _hurt(self, body: Any) -> None:
        """Somewhere within."""
        at: Any = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                return
            key = self._dice.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and self._dice.random() < 0.6:
                at = at[key]
                continue
            way = self._dice.randrange(4)
            if way == 0:
                del at[key]
            elif way == 1:
                at[key] = [at[key]]
            else:
                at[key] = self._any(HOSTILE)
            return

    def bytes_of(self, body: Any) -> tuple[bytes, str]:
        """And the content type."""
        said = json.dumps(body).encode()
        if self._dice.random() < 0.02:
            said = said[: self._dice.randrange(len(said))]
        kind = "application/json" if self._dice.random() < 0.98 else self._dice.choice(["", "text/plain", "a/b; c"])
        return said, kind


@dataclass
class Tally:
    """``counts``: by route and status. ``silence``: the longest time without a byte in a stream, or in
    front of it, and whose it was."""

    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    silence: tuple[float, str] = (0.0, "")

    def __str__(self) -> str:
        lines = [
            f"{path:28} "
            + ", ".join(f"{count} of {status}" for (its, status), count in sorted(self.counts.items()) if its == path)
            for path in ROUTES
        ]
        seconds, request = self.silence
        return "\n".join([*lines, f"the longest silence: {seconds:.2f} s, {request}", f"wrong: {len(self.wrong)}"])


def request_of(seed: int, number: int) -> tuple[str, bytes, str]:
    """Its route, body and content type."""
    dice = random.Random(f"{seed} {number}")
    bodies = Bodies(dice)
    path = dice.choice(list(ROUTES))
    return path, *bodies.bytes_of(bodies.body(ROUTES[path]))


async def asked(app: Any, path: str, body: bytes, kind: str) -> tuple[int, bytes, float]:
    """The status, the answer, and the longest time without a byte of it."""
    headers = ((b"host", b"localhost"), (b"content-type", kind.encode()))
    status, said, silence, last = 0, b"", 0.0, time.monotonic()
    async for part in answered(app, Call("POST", path, b"", headers, body)):
        now = time.monotonic()
        silence, last = max(silence, now - last), now
        if isinstance(part, Head):
            status = part.status
        else:
            said += part
    return status, said, max(silence, time.monotonic() - last)


def is_stream(said: bytes) -> bool:
    """Of server-sent events."""
    return said.startswith((b"data: ", b"event: ", b": "))


def wrong_with(path: str, status: int, said: bytes) -> str:
    """What; "": nothing."""
    if status not in STATUSES:
        return f"status {status}"
    if is_stream(said):
        ends = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete", b"error")
        return "" if any(end in said for end in ends) else "a stream without an end"
    try:
        told = [json.loads(line) for line in said.splitlines()] if path.startswith("/api/") else [json.loads(said)]
    except ValueError:
        return "no JSON"
    if status == 200:
        return ""
    error = told[0].get("error")
    message = error.get("message") if isinstance(error, dict) else error
    return "" if isinstance(message, str) and message.strip() else "an error without words"


async def play(app: Any, seed: int, count: int, at_once: int = 8, shows: bool = False) -> Tally:
    """``count`` requests."""
    tally, numbers = Tally(), iter(range(count))

    async def some() -> None:
        for number in numbers:
            path, body, kind = request_of(seed, number)
            try:
                status, said, silence = await asyncio.wait_for(asked(app, path, body, kind), PATIENCE)
                problem = wrong_with(path, status, said)
            except Exception as error:
                status, said, silence, problem = 0, b"", 0.0, f"{type(error).__name__}: {error}"
            tally.counts[path, status] += 1
            if is_stream(said):
                tally.silence = max(tally.silence, (silence, f"request {number} to {path}"))
            if problem:
                tally.wrong.append(f"request {number} of seed {seed} to {path}: {problem}: {body!r} -> {said[:300]!r}")
            if shows and number % 5000 == 4999:
                print(f"{number + 1} requests, {len(tally.wrong)} wrong", flush=True)

    await asyncio.gather(*(some() for _ in range(at_once)))
    return tally


def fuzzed(seed: int, count: int, shows: bool = False) -> Tally:
    """On a small model. What is wrong with the cache afterwards is wrong, too."""
    model = tiny_model(TEMPLATE)
    cache = kv.PrefixCache(model.caches(capacity=2048), fingerprint=model.fingerprint, host_bytes=1 << 20)
    app = create_app(model, cache, "tiny", Settings(256, max_tokens=4, draft=("prompt", "tree")))
    try:
        tally = asyncio.run(play(app, seed, count, shows=shows))
        tally.wrong += cache.check()
        return tally
    finally:
        app.state.engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"seed {given.seed}")
    result = fuzzed(given.seed, given.requests, shows=True)
    print(result, *result.wrong, sep="\n")
    sys.exit(bool(result.wrong))
