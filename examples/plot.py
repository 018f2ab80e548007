"""The demo's plot: who says what after which turn, and how messages become tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TINY = Path(__file__).resolve().parent / "tiny"
INSTRUCTIONS = TINY.parent / "instructions.txt"


@dataclass(frozen=True)
class Turn:
    """One line of the plot: `who` says something after the turn `after` ("" is the system prompt alone).

    With `again`, no new question is asked: the prompt of that turn is answered once more. `heat` is the sampling
    temperature; 0 is greedy.
    """

    label: str
    who: str
    what: str
    after: str = ""
    says: str = ""
    again: str = ""
    heat: float = 0.0


PLOT = (
    Turn("anna 1", "Anna", "new", "", "Tell me about situations where a database server works better."),
    Turn("ben 1", "Ben", "new", "", "What does the manual say about embedded devices?"),
    Turn("anna 2", "Anna", "goes on", "anna 1", "Please explain: high concurrency."),
    Turn("chloe 1", "Chloe", "branch of Anna 1", "anna 1", "What about very large datasets?"),
    Turn("ben 2", "Ben", "goes on", "ben 1", "Tell me about the internet of things, and about files on disk."),
    Turn("anna 3", "Anna", "goes on", "anna 2", "What does the manual say about data on another computer?"),
    Turn("ben 1b", "Ben", "edits question 1", "", "What does the manual say about websites and their traffic?"),
    Turn("chloe 1b", "Chloe", "another answer", again="chloe 1", heat=0.8),
    Turn(
        "dora 1", "Dora", "new", "", "Please explain: data analysis. Tell me about importing files, and about queries."
    ),
    Turn("dora 2", "Dora", "goes on", "dora 1", "What about a cache for enterprise data?"),
    Turn("ben 3", "Ben", "back to his first", "ben 2", "Please explain: application file format."),
    Turn("anna 4", "Anna", "comes back", "anna 3", "What about temporary files?"),
    Turn("anna 1c", "Anna", "exact repeat", again="anna 1"),
)


@dataclass(frozen=True)
class Transcript:
    """What was said so far, as messages, as the text they make, and as the tokens that were really used."""

    messages: tuple[dict[str, str], ...]
    text: str
    tokens: tuple[int, ...]

    def ask(self, tokenizer: Any, question: str) -> Transcript:
        """With a user's message and the marker of an answer. Tokens that exist stay; only what is new is encoded."""
        messages = (*self.messages, {"role": "user", "content": question})
        text = render(tokenizer, messages)
        if text.startswith(self.text):
            tokens = (*self.tokens, *tokenizer.encode(text[len(self.text) :], add_special_tokens=False))
        else:  # a template that rewrites what came before it
            tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
        return Transcript(messages, text, tokens)

    def answer(self, tokenizer: Any, tokens: Sequence[int]) -> Transcript:
        """With the answer `tokens` to the last question."""
        reply = {"role": "assistant", "content": tokenizer.decode(tokens, skip_special_tokens=True)}
        return Transcript((*self.messages, reply), self.text + tokenizer.decode(tokens), (*self.tokens, *tokens))


def render(tokenizer: Any, messages: Sequence[dict[str, str]]) -> str:
    """Messages as text, by the checkpoint's own template; a plain one for base models, which have none."""
    if tokenizer.chat_template is None:
        gaps = {"assistant": ""}  # an answer follows its colon as it was generated
        parts = [f"{each['role'].title()}:{gaps.get(each['role'], ' ')}{each['content']}" for each in messages]
        return "\n\n".join([*parts, "Assistant:"])
    return str(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, enable_thinking=False)
    )


def system_transcript(folder: Path) -> Transcript:
    """The system prompt: `prompt.txt` of the checkpoint's folder, else instructions and the shipped model's prompt."""
    own = folder / "prompt.txt"
    parts = [own] if own.exists() else [INSTRUCTIONS, TINY / "prompt.txt"]
    content = "\n\n".join(part.read_text(encoding="utf-8").strip() for part in parts)
    return Transcript(({"role": "system", "content": content},), "", ())


def readable(tokenizer: Any) -> Callable[[list[int]], str]:
    """A decoder for labels: markers such as <|user|> become blanks, halves of characters go."""
    return lambda tokens: re.sub(r"</?\|?\w+\|?>", " ", tokenizer.decode(tokens)).replace("\ufffd", "")


def longest_prompt(tokenizer: Any, system: Transcript, answer: int) -> tuple[int, int]:
    """(tokens of the longest conversation, tokens of all of them together), if every answer has `answer` tokens."""
    opening = len(system.ask(tokenizer, "").tokens)
    depth: dict[str, int] = {"": opening}
    total = opening
    for turn in PLOT:
        more = answer + (0 if turn.again else len(tokenizer.encode(turn.says)) + 8)
        depth[turn.label] = depth[turn.after if not turn.again else turn.again] + more
        total += more
    return max(depth.values()), total
