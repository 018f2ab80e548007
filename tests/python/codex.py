"""Codex, as far as a server sees it: what it asks over /v1/responses in a session of 20 turns.

Source: developers.openai.com/codex, platform.openai.com/docs/api-reference/responses, and public reports about its
requests, up to 0.147. Instructions and tools are of the same kind, in words of our own.

    instructions    long, the same in each request
    input           the whole conversation each time: what developers and users said, reasoning items as they came,
                    calls, their outputs; an answer that was interrupted leaves only the items that were complete
    tools           functions, and namespaces of functions (of MCP servers)
    always          stream, store: false, include, prompt_cache_key, client_metadata

``kept=True`` is a client that leaves the conversation to the server: previous_response_id and new items only.
"""

from __future__ import annotations

from typing import Any

from agent_rounds import OPENING, TOOLS, Sender, Thread, manual, words

HEADERS = {"user-agent": "codex_cli_rs/0.147.0", "originator": "codex_cli_rs", "authorization": "Bearer none"}
RESPONSES, COUNT = "/v1/responses", "/v1/responses/input_tokens"
KINDS = ("text", "call", "calls", "call of a namespace", "left")
SERVER = "mcp__library"  # the name of a namespace
SHELL = {
    "type": "object",
    "properties": {
        "cmd": {"type": "string", "maxLength": 24},
        "yield_time_ms": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["cmd"],
    "additionalProperties": False,
}


class Codex(Sender):
    """``effort``: of reasoning; None where the model is not known to reason. The others as ClaudeCode has them."""

    def __init__(
        self, url: str, model: str, sections: int, most: int = 0, seconds: float = 120, required: bool = False,
        kept: bool = False, effort: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(url, HEADERS, seconds)
        self._model, self._most, self._required, self._kept, self._effort = model, most, required, kept, effort
        self._manual = manual("a coding agent of a terminal", sections)
        self.said: dict[str, list[Any]] = {}  # the items of each answer

    def session(self, turns: int = 20) -> None:
        """All of it."""
        main = self._begin("developer rules")
        for turn in range(turns):
            self.turn(main, f"main {turn}", KINDS[turn % len(KINDS)])
            if turn % 7 == 5:
                helper = self._begin("helper rules")
                for step in range(3):
                    self.turn(helper, f"sub {turn} {step}", ("call", "calls", "text")[step])

    @staticmethod
    def _begin(rules: str) -> Thread:
        context = f"<environment_context>\n<cwd>/src</cwd>\n{words(len(rules), 12)}\n</environment_context>"
        return Thread([message("developer", f"{rules}: {words(len(rules), 40)}"), message("user", context)])

    def turn(self, thread: Thread, name: str, kind: str) -> None:
        """One request."""
        new = [*self._outputs(thread, name), message("user", f"[{name}] {words(len(name), 12)}")]
        thread.kept += new
        body = self._body(thread, new)
        if self._required and "call" in kind:
            body.update(tool_choice="required", parallel_tool_calls=kind == "calls")
        left = kind == "left" and not self._kept  # an answer that was left is nowhere to go on from
        count = self._count(body) if left else 0
        items, response = self._answer(body, "response.output_text.delta" if left else "")
        self.said[name] = items
        if left:
            thread.kept += [stripped(item) for item in items]  # those that were complete
            thread.kept.append(message("user", f"<turn_aborted>\n{words(3, 9)}\n</turn_aborted>"))
            thread.known, thread.cut = count - OPENING, True
            return
        thread.kept += [stripped(item) for item in items]
        thread.previous = response["id"]
        usage = response["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        self.note(name, thread, usage["input_tokens"], cached, usage["output_tokens"])
        thread.cut = response["status"] == "incomplete"

    def _outputs(self, thread: Thread, name: str) -> list[Any]:
        """Of all calls that wait for theirs."""
        done = {item.get("call_id") for item in thread.kept if item["type"] == "function_call_output"}
        calls = [item for item in thread.kept if item["type"] == "function_call" and item["call_id"] not in done]
        return [
            {"type": "function_call_output", "call_id": call["call_id"], "output": f"Exit code: {at}\n{words(at, 10)}"}
            for at, call in enumerate(calls)
        ]

    def _body(self, thread: Thread, new: list[Any]) -> Any:
        before = thread.previous if self._kept else None
        body: dict[str, Any] = {
            "model": self._model,
            "instructions": self._manual,
            "input": [*thread.kept] if before is None else new,
            "tools": tools(),
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "store": self._kept,
            "stream": True,
            "include": [] if self._effort is None else ["reasoning.encrypted_content"],
            "prompt_cache_key": "0197c0de",
            "client_metadata": {"x-codex-installation-id": "0197c0de", "session_id": "one", "turn_id": str(len(new))},
        }
        if self._effort is not None:
            body["reasoning"] = {"effort": self._effort, "summary": "auto"}
        if before is not None:
            body["previous_response_id"] = before
        if self._most:  # the client itself sends no limit
            body["max_output_tokens"] = self._most
        return body

    def _answer(self, body: Any, left_behind: str) -> tuple[list[Any], Any]:
        """Its complete items, and the response that ends it."""
        items, response = [], None
        for event in self.stream(RESPONSES, body, left_behind):
            if event["type"] == "response.output_item.done":
                items.append(event["item"])
            elif event["type"] in ("response.completed", "response.incomplete"):
                response = event["response"]
            assert event["type"] not in ("response.failed", "error"), event
        return items, response

    def _count(self, body: Any) -> int:
        names = ("model", "instructions", "input", "tools", "tool_choice", "reasoning", "previous_response_id")
        return int(self.post(COUNT, {name: body[name] for name in names if name in body})["input_tokens"])


def message(role: str, text: str) -> Any:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def stripped(item: Any) -> Any:
    """As it is sent back: reasoning without its text, which stands in encrypted_content; nothing that says how far."""
    return {
        name: value
        for name, value in item.items()
        if name != "status" and (item["type"], name) != ("reasoning", "content")
    }


def tools() -> list[Any]:
    """Functions of its own, and of one MCP server."""
    shell = {
        "type": "function",
        "name": "exec_command",
        "description": words(7, 30),
        "strict": False,
        "parameters": SHELL,
    }
    others = [
        {"type": "function", "name": name, "description": words(at, 20), "strict": False, "parameters": schema}
        for at, (name, schema) in enumerate(TOOLS.items())
    ]
    return [shell, {"type": "namespace", "name": SERVER, "description": words(8, 12), "tools": others}]
