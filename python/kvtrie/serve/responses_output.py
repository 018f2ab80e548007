"""An answer as items of the Responses API, while it comes: reasoning, messages and calls.

Each item is begun, goes on, and is done before the next one begins. White space between reasoning, calls and texts
that nothing follows is no message of its own.

Threads: an ``Output`` belongs to one answer.
"""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .answer import Answer, Piece
from .json_values import JsonObject
from .logprobs import of_chat
from .responses_items import encrypted


def new_id(prefix: str) -> str:
    """Of a response or an item."""
    return f"{prefix}_{secrets.token_hex(16)}"


@dataclass(frozen=True)
class Change:
    """An event of the item at ``index``: it was begun, it has ``text`` more, it is done. ``item``: as it was
    then; of one that has more, only what does not change."""

    kind: Literal["begun", "more", "done"]
    index: int
    item: JsonObject
    text: str = ""
    logprobs: Sequence[JsonObject] = ()


class Output:
    """``items``: so far. ``custom``: names of tools that take a text. ``with_reasoning``: as ``encrypted_content``,
    too. ``namespaces``: as ``namespaces_of`` has them. ``reasoning_tokens``: of what the answer has, those up to the
    end of its reasoning.
    """

    def __init__(
        self,
        answer: Answer,
        custom: Collection[str] = (),
        with_reasoning: bool = False,
        namespaces: Mapping[str, tuple[str, str]] | None = None,
    ) -> None:
        self.items: list[JsonObject] = []
        self.reasoning_tokens = 0
        self._answer, self._custom, self._with_reasoning = answer, frozenset(custom), with_reasoning
        self._namespaces = namespaces or {}
        self._blank = ""
        self._logprobs: list[JsonObject] = []

    def take(self, piece: Piece) -> list[Change]:
        """The text that became certain."""
        changes: list[Change] = []
        if piece.reasoning:
            self.reasoning_tokens = self._answer.generated
            changes += self._more("reasoning", piece.reasoning)
        else:
            self._logprobs += of_chat(self._answer.token_bytes, piece.logprobs, piece.first)
        if piece.text:
            changes += self._text(piece.text)
        for made, call in piece.calls:
            changes += self._call(made, call.name, call.arguments)
        return changes

    def finish(self, status: Literal["completed", "incomplete"]) -> list[Change]:
        """Nothing more comes. An answer that said nothing is an empty message."""
        changes: list[Change] = []
        if not any(item["type"] != "reasoning" for item in self.items):
            changes += self._more("message", self._blank)
        return changes + self._done(status)

    @property
    def text(self) -> str:
        """Of all messages."""
        said = [item for item in self.items if item["type"] == "message"]
        return "".join(str(item["content"][0]["text"]) for item in said)

    # --- items ------------------------------------------------------------------------------------------------------

    def _text(self, text: str) -> list[Change]:
        if not self._is_open("message"):
            text, self._blank = self._blank + text, ""
            if text.isspace():
                self._blank = text
                return []
        return self._more("message", text)

    def _more(self, kind: Literal["message", "reasoning"], text: str) -> list[Change]:
        changes: list[Change] = []
        if not self._is_open(kind):
            changes = self._done("completed")
            changes.append(self._begun(_message() if kind == "message" else _reasoning()))
        index, item = len(self.items) - 1, self.items[-1]
        logprobs: list[JsonObject] = []
        if kind == "message":
            logprobs, self._logprobs = self._logprobs, []
            item["content"][0]["logprobs"] += logprobs
        item["content"][0]["text"] += text
        return [*changes, Change("more", index, {"type": kind, "id": item["id"]}, text, logprobs)]

    def _call(self, made: str, name: str, arguments: str) -> list[Change]:
        changes = self._done("completed")
        self._blank = ""
        field, text = ("input", _input_of(arguments)) if name in self._custom else ("arguments", arguments)
        kind, prefix = ("custom_tool_call", "ctc") if name in self._custom else ("function_call", "fc")
        item: JsonObject = {"type": kind, "id": new_id(prefix), "call_id": made, "name": name, field: ""}
        if name in self._namespaces:
            item["namespace"], item["name"] = self._namespaces[name]
        changes.append(self._begun({**item, "status": "in_progress"}))
        self.items[-1][field] = text
        changes.append(Change("more", len(self.items) - 1, item, text))
        return changes + self._done("completed")

    def _begun(self, item: JsonObject) -> Change:
        self.items.append(item)
        return Change("begun", len(self.items) - 1, copy.deepcopy(item))

    def _done(self, status: str) -> list[Change]:
        if not self.items or self.items[-1]["status"] != "in_progress":
            return []
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "reasoning" and self._with_reasoning:
            item["encrypted_content"] = encrypted(item["content"][0]["text"])
        return [Change("done", len(self.items) - 1, item)]

    def _is_open(self, kind: str) -> bool:
        return bool(self.items) and self.items[-1]["type"] == kind and self.items[-1]["status"] == "in_progress"


def _message() -> JsonObject:
    part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "in_progress", "content": [part]}


def _reasoning() -> JsonObject:
    part = {"type": "reasoning_text", "text": ""}
    return {"type": "reasoning", "id": new_id("rs"), "summary": [], "content": [part], "status": "in_progress"}


def _input_of(arguments: str) -> str:
    """Of a tool that takes a text; what is not of that form goes on as it is."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = value.get("input") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
