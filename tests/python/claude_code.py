"""Claude Code 2.1.x, as far as a server sees it: what it asks in a session of 20 turns.

Source: code.claude.com/docs, docs.claude.com/en/api/messages, and public reports about its requests. Its prompts are
not these: instructions and tools are of the same kind and order, in words of our own.

    system      a line that changes with each request, who it is, its instructions; the last two with cache_control
    messages    the whole conversation each time; a mark (cache_control) on its last block, which moves on; reminders
                as texts beside results, and as messages of the role "system"
    besides     a probe of one token, a title by a JSON schema, count_tokens, sub-agents with instructions of their own
"""

from __future__ import annotations

import copy
import json
from typing import Any

from agent_rounds import OPENING, TOOLS, Sender, Thread, manual, words

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "user-agent": "claude-cli/2.1.200 (external, cli)",
    "x-app": "cli",
    "x-api-key": "none",
}
MESSAGES, COUNT = "/v1/messages?beta=true", "/v1/messages/count_tokens?beta=true"
KINDS = ("text", "call", "calls", "wrong call", "left")
TITLE = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 20}}, "required": ["title"]}
TITLE["additionalProperties"] = False
EPHEMERAL = {"type": "ephemeral"}


class ClaudeCode(Sender):
    """``most``: tokens of an answer; ``sections``: of its instructions. ``required``: calls are, as a model that was
    not trained for them makes none; the client itself leaves the choice to the model."""

    def __init__(
        self, url: str, model: str, sections: int, most: int = 32_000, seconds: float = 120, required: bool = False
    ) -> None:
        super().__init__(url, HEADERS, seconds)
        self._model, self._most, self._required = model, most, required
        self._manual = manual("a coding agent", sections)
        self._requests = 0
        self.said: dict[str, list[Any]] = {}  # the blocks of each answer
        self.counted: list[tuple[int, int]] = []  # what count_tokens said, and what the prompt then had

    def session(self, turns: int = 20) -> None:
        """All of it."""
        self._probe()
        self._title()
        main = Thread()
        for turn in range(turns):
            counts = turn % 7 == 3
            self.turn(main, f"main {turn}", KINDS[turn % len(KINDS)], counts=counts, reminded=turn % 4 == 2)
            if turn % 7 == 5:
                helper = Thread()
                for step in range(3):
                    self.turn(helper, f"sub {turn} {step}", ("call", "calls", "text")[step])

    def turn(self, thread: Thread, name: str, kind: str, counts: bool = False, reminded: bool = False) -> None:
        """One request. ``counts``: asks for its tokens before; ``reminded``: by a message of the role "system"."""
        self._say(thread, name)
        if reminded:
            thread.kept.append({"role": "system", "content": f"Reminder: {words(len(name), 8)}."})
        body = self._body(thread, name)
        if self._required and kind.endswith(("call", "calls")):
            body["tool_choice"] = {"type": "any", "disable_parallel_tool_use": kind != "calls"}
        count = self._count(body) if counts or kind == "left" else 0
        left = kind == "left"
        behind = ("text_delta" if self._required or name.endswith("4") else "thinking_delta") if left else ""
        content, ending = self._answer(body, behind)
        self.said[name] = content
        if left:
            self._leave(thread, content, count)
            return
        thread.kept.append({"role": "assistant", "content": content})
        usage = ending["usage"]
        prompt = sum(usage[key] for key in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
        self.note(name, thread, prompt, usage["cache_read_input_tokens"], usage["output_tokens"])
        thread.cut = ending["delta"]["stop_reason"] == "max_tokens"
        if counts:
            self.counted.append((count, prompt))

    @staticmethod
    def _leave(thread: Thread, content: list[Any], count: int) -> None:
        """What stays of an answer: its text, with the thoughts in front of it; nothing where it was still thinking."""
        has_text = content[-1]["type"] == "text"
        if has_text:
            thread.kept.append({"role": "assistant", "content": content})
        thread.known, thread.cut = count if has_text else count - OPENING, True

    def _say(self, thread: Thread, name: str) -> None:
        """What the user, or the client, says next: results of all calls, the third one wrong; then a text."""
        text = f"[{name}] {words(hash_of(name), 12)}"
        blocks: list[Any] = []
        if thread.kept and thread.kept[-1]["role"] == "assistant":
            calls = [block for block in thread.kept[-1]["content"] if block["type"] == "tool_use"]
            for at, call in enumerate(calls):
                parts = [{"type": "text", "text": f"{at + 1}\t{words(hash_of(name) + at, 10)}"}]
                wrong = len(thread.kept) % 3 == 0
                result = {"tool_use_id": call["id"], "type": "tool_result", "content": parts}
                blocks.append({**result, "content": "No such file.", "is_error": True} if wrong else result)
        if thread.cut and not blocks:
            blocks.append({"type": "text", "text": "[the answer was interrupted by the user]"})
        if blocks:
            text = f"<system-reminder>\n{text}\n</system-reminder>"
        blocks.append({"type": "text", "text": text})
        if thread.kept and thread.kept[-1]["role"] == "user":  # whose answer was left before it said anything
            thread.kept[-1]["content"] += blocks
        else:
            thread.kept.append({"role": "user", "content": blocks})

    def _body(self, thread: Thread, name: str) -> Any:
        messages = copy.deepcopy(thread.kept)
        last = next(message for message in reversed(messages) if message["role"] == "user")
        last["content"][-1]["cache_control"] = EPHEMERAL
        helper = name.startswith("sub")
        tools = [
            {"name": tool, "description": words(at, 30), "input_schema": schema, "eager_input_streaming": True}
            for at, (tool, schema) in enumerate(TOOLS.items())
            if not (helper and tool == "Task")
        ]
        body = self._head(manual("a helper that looks for files", 6) if helper else self._manual)
        body.update(messages=messages, tools=tools, stream=True, max_tokens=self._most)
        if not helper:
            body.update(thinking={"type": "adaptive"}, output_config={"effort": "medium"})
            body["context_management"] = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
            body["diagnostics"] = {"previous_message_id": None}
        return body

    def _head(self, instructions: str) -> Any:
        self._requests += 1
        billing = f"x-anthropic-billing-header: cc_version=2.1.200.{self._requests:03x}; cc_entrypoint=cli;"
        system = [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are a command line agent.", "cache_control": EPHEMERAL},
            {"type": "text", "text": instructions, "cache_control": EPHEMERAL},
        ]
        return {"model": self._model, "system": system, "metadata": {"user_id": json.dumps({"session_id": "one"})}}

    def _answer(self, body: Any, left_behind: str) -> tuple[list[Any], Any]:
        """Its blocks, as they are sent back, and the event that ends it."""
        content: list[Any] = []
        written, ending = "", None
        for event in self.stream(MESSAGES, body, left_behind):
            if event["type"] == "content_block_start":
                content.append(dict(event["content_block"]))
                written = ""
            elif event["type"] == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    written += delta["partial_json"]
                    content[-1]["input"] = json.loads(written)
                else:
                    key = "thinking" if delta["type"] == "thinking_delta" else "text"
                    content[-1][key] += delta[key]
            elif event["type"] == "message_delta":
                ending = event
        return content, ending

    def _count(self, body: Any) -> int:
        names = ("model", "system", "messages", "tools", "thinking", "tool_choice", "output_config")
        return int(self.post(COUNT, {name: body[name] for name in names if name in body})["input_tokens"])

    def _probe(self) -> None:
        body = {**self._head("Quota."), "messages": [{"role": "user", "content": "quota"}], "max_tokens": 1}
        assert self.post(MESSAGES, body)["usage"]["output_tokens"] == 1

    def _title(self) -> None:
        body = self._head("Write a title of three words for the conversation.")
        body.update(messages=[{"role": "user", "content": [{"type": "text", "text": "[title] How do locks work?"}]}])
        body.update(max_tokens=200, output_config={"format": {"type": "json_schema", "schema": TITLE}})
        (block,) = self.post(MESSAGES, body)["content"]
        assert set(json.loads(block["text"])) == {"title"}


def hash_of(name: str) -> int:
    """The same in every process."""
    return sum(ord(sign) * (at + 1) for at, sign in enumerate(name))
