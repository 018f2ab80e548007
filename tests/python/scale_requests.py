"""Requests of tests to an application of several replicas, and the answers that scale_engine.py's model gives."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from typing import Any, Optional

from scale_engine import plain_model

MODEL = plain_model(check=False)


def words(dice: random.Random, count: int) -> str:
    return "".join(
        dice.choice([" red", " blue", " one", " two", " cat", " dog", " tree", " sky"]) for _ in range(count)
    )


def chat_of(dice: random.Random, count: int = 100) -> list[dict[str, str]]:
    return [{"role": "user", "content": words(dice, count)}]


def expected(messages: list[dict[str, str]], count: int, namespace: str = "default") -> str:
    prompt = MODEL.tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return MODEL.answer(namespace, prompt, count)


def ask(client: Any, messages: Any, count: int = 8, key: Optional[str] = None, **fields: Any) -> Any:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"messages": messages, "max_tokens": count, "temperature": 0, **fields}
    return client.post("/v1/chat/completions", json=body, headers=headers)


def text_of(answer: Any) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def events_of(lines: Iterable[str]) -> Iterator[Any]:
    """As they come."""
    for line in lines:
        if line.startswith("data: "):
            yield line[6:] if line[6:] == "[DONE]" else json.loads(line[6:])
