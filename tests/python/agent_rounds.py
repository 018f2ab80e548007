"""What conversations of coding agents have in common: long instructions, tools, and what each request must have found.

Nothing here knows kvtrie: scripts of tests/clients use it, too. Units: tokens, as answers count them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

WORDS = ("page", "lock", "cell", "tree", "node", "disk", "row", "key", "file", "line", "step", "call")
OPENING = 8  # tokens at the end of a prompt that begin an answer, and are not there again where it was left, at most
LEFT_AFTER = 4  # pieces of an answer
CUT = 4  # tokens that an answer may lose where it was cut off: a tokenizer joins them across the cut


def words(seed: int, count: int) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(count))


def manual(name: str, sections: int) -> str:
    """Instructions as agents have them: headings, rules, examples; some 45 words in each section."""
    parts = [f"You are {name}, an agent that works on the files of one repository."]
    for at in range(sections):
        rules = "\n".join(f"- {words(97 * at + rule, 9)}." for rule in range(4))
        parts.append(f"# {words(at, 2).title()}\n{rules}\n<example>\nuser: {words(at + 5, 5)}?\n</example>")
    return "\n\n".join(parts)


def parameters(**kinds: str) -> dict[str, Any]:
    """A tool's, as tools of agents come: JSON Schema of 2020, nothing beside what is named."""
    properties = {name: {"type": kind, "description": words(len(name), 6)} for name, kind in kinds.items()}
    for each in properties.values():
        each.update({"maxLength": 24} if each["type"] == "string" else {"minimum": 0, "maximum": 99})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TOOLS = {
    "Read": parameters(file_path="string", offset="integer"),
    "Bash": parameters(command="string", timeout="integer"),
    "Grep": parameters(pattern="string", path="string"),
    "Task": parameters(description="string", prompt="string"),
    "TodoWrite": parameters(todo="string"),
}


@dataclass
class Thread:
    """One conversation: what the client keeps of it, and the tokens of it that the server must know by now.
    ``previous``: the id of its last response, where the server keeps it."""

    kept: list[Any] = field(default_factory=list)
    known: int = 0
    previous: str | None = None
    cut: bool = False  # its last answer, by its length or by the client


@dataclass(frozen=True)
class Round:
    """One request that was answered to its end. ``must``: tokens that had to be found."""

    name: str
    prompt: int
    cached: int
    must: int

    @property
    def again(self) -> int:
        """Tokens that were computed though they had been."""
        return max(0, self.must - self.cached)


def events(lines: Iterable[str]) -> Iterator[Any]:
    """The data of server-sent events, each as it comes."""
    return (json.loads(line[6:]) for line in lines if line.startswith("data: ") and line != "data: [DONE]")


def require_only_new(rounds: list[Round]) -> str:
    """Raises where a round computed what was known; what they came to, in words."""
    for each in rounds:
        assert each.again == 0, f"{each.name}: {each.cached} of {each.must} known tokens were found"
    prompts, cached = sum(each.prompt for each in rounds), sum(each.cached for each in rounds)
    return f"{len(rounds)} requests, {prompts:,} prompt tokens, {prompts - cached:,} computed"


class Sender:
    """The HTTP side of an agent; ``headers`` as its client sends them."""

    def __init__(self, url: str, headers: dict[str, str], seconds: float) -> None:
        self.rounds: list[Round] = []
        self._client = httpx.Client(base_url=url, headers=headers, timeout=seconds, trust_env=False)

    def post(self, path: str, body: Any) -> Any:
        answer = self._client.post(path, json=body)
        assert answer.status_code == 200, f"{path}: {answer.text}"
        return answer.json()

    def stream(self, path: str, body: Any, left_behind: str = "") -> Iterator[Any]:
        """Events of an answer; the client leaves behind ``LEFT_AFTER`` that have a delta of this type, if any."""
        seen = 0
        with self._client.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                raise AssertionError(f"{path}: {answer.read().decode()}")
            for event in events(answer.iter_lines()):
                yield event
                delta = event.get("delta")
                seen += left_behind in (event["type"], delta.get("type") if isinstance(delta, dict) else None)
                if seen == LEFT_AFTER:
                    return

    def note(self, name: str, thread: Thread, prompt: int, cached: int, made: int) -> None:
        """One round to its end, and what the next one must find: all but the last token, which was never computed."""
        self.rounds.append(Round(name, prompt, cached, thread.known - (CUT if thread.cut else 0)))
        thread.known = prompt + made - 1

    def close(self) -> None:
        self._client.close()
