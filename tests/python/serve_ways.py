"""Ways to ask a server, without a network: its application is called in this process, in an event loop of the test's.

A :class:`House` is a server over a model without weights whose every token names the text before it (naming_model.py),
and the event loop. A :class:`Call` is one request; ``WAYS`` has one for each route and form of answer. :func:`told` is
what its client can tell afterwards: an answer, an error, or that the connection broke.

A client leaves when so many messages have passed between it and the application: it hears nothing from then on, and the
application is told.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import kvtrie as kv
from kvtrie.models.tokenizer import Tokenizer
from kvtrie.serve.app import create_app
from kvtrie.serve.settings import Settings
from processes import PATIENCE
from scale_engine import plain_model
from small_templates import WITH_TOOLS

PARAMETERS = {
    "type": "object",
    "properties": {"all": {"type": "boolean"}},
    "required": ["all"],
    "additionalProperties": False,
}
QUESTION: list[Any] = [{"role": "user", "content": "How many?"}]
TOOLS = [{"type": "function", "function": {"name": "count", "parameters": PARAMETERS}}]
CALLED: list[Any] = [
    *QUESTION,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_of_ours", "type": "function", "function": {"name": "count", "arguments": '{"all": true}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_of_ours", "content": "12"},
]
COUNT = 4  # tokens of an answer that has no grammar
CHANGING = (
    "id", "created", "usage", "timings", "compute_seconds", "load_seconds", "text_of_why", "created_at", "completed_at",
    "item_id", "call_id", "total_duration", "prompt_eval_duration", "eval_duration", "prompt_eval_cached",
)  # fmt: skip
ENDS = ("message_stop", "response.completed", "response.incomplete")
DONE = "[DONE]"
_OF_A_PAGE = 4  # tasks: its request, what sends to it, what waits for something new, and what reads the tree for all
HANGS = float(os.environ.get("KVTRIE_HANGS", PATIENCE / 10))  # seconds after which a request is taken to


class Way(NamedTuple):
    """A request. ``stream``: its answer is one."""

    name: str
    path: str
    body: dict[str, Any]
    method: str = "POST"

    @property
    def stream(self) -> bool:
        return bool(self.body.get("stream"))


def _way(name: str, path: str, **body: Any) -> Way:
    return Way(name, path, body)


_CHAT, _TEXT, _MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
_PLAIN = {"temperature": 0, "max_tokens": COUNT}
_RESPONSES = "/v1/responses"
_AS_ITEMS = [{"type": "function", "name": "count", "parameters": PARAMETERS}]
_OPTIONS = {"temperature": 0, "num_predict": COUNT}
_OURS = [{"name": "count", "input_schema": PARAMETERS}]
WAYS: tuple[Way, ...] = (
    _way("chat", _CHAT, messages=QUESTION, n=2, **_PLAIN),
    _way("chat_stream", _CHAT, messages=QUESTION, stream=True, logprobs=True, top_logprobs=1, **_PLAIN),
    _way("chat_streams", _CHAT, messages=QUESTION, stream=True, n=2, stream_options={"include_usage": True}, **_PLAIN),
    _way("chat_schema", _CHAT, messages=QUESTION, temperature=0, max_tokens=40,
         response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": PARAMETERS}}),
    _way("chat_tools", _CHAT, messages=QUESTION, tools=TOOLS, tool_choice="required", temperature=0, max_tokens=90),
    _way("chat_tools_stream", _CHAT, messages=CALLED, tools=TOOLS, tool_choice="required", stream=True, temperature=0,
         max_tokens=90),
    _way("chat_predicted", _CHAT, messages=QUESTION, stream=True, prediction={"type": "content", "content": "A lock"},
         stream_options={"include_usage": True}, **_PLAIN),
    _way("text", _TEXT, prompt=["A lock", "A page"], logprobs=1, **_PLAIN),
    _way("text_stream", _TEXT, prompt="A lock", stream=True, stop=["never so"], return_token_ids=True, **_PLAIN),
    _way("messages", _MESSAGES, messages=QUESTION, **_PLAIN),
    _way("messages_stream", _MESSAGES, messages=QUESTION, stream=True, **_PLAIN),
    _way("messages_tools", _MESSAGES, messages=QUESTION, tools=_OURS, tool_choice={"type": "any"}, stream=True,
         temperature=0, max_tokens=90),
    _way("count_tokens", "/v1/messages/count_tokens", messages=QUESTION),
    _way("responses", _RESPONSES, input=QUESTION, temperature=0, max_output_tokens=COUNT),
    _way("responses_stream", _RESPONSES, input=QUESTION, stream=True, temperature=0, max_output_tokens=COUNT),
    _way("responses_tools", _RESPONSES, input=QUESTION, tools=_AS_ITEMS, tool_choice="required", stream=True,
         temperature=0, max_output_tokens=90),
    _way("ollama", "/api/chat", model="m", messages=QUESTION, stream=False, options=_OPTIONS),
    _way("ollama_stream", "/api/chat", model="m", messages=QUESTION, stream=True, options=_OPTIONS),
    _way("explain", "/explain", messages=QUESTION),
    _way("tokenize", "/tokenize", content="A lock"),
    _way("wrong", _CHAT, messages=QUESTION, n=99),
    Way("metrics", "/metrics", {}, "GET"),
)  # fmt: skip


class House:
    """A server and the event loop that its application is called in. ``watched``: a page looks on, for whom each
    request is explained. ``options``: of ``kv.PrefixCache``."""

    def __init__(self, watched: bool = False, **options: Any) -> None:
        self.model: Any = plain_model(check=False)
        own = self.model.tokenizer
        self.model.tokenizer = Tokenizer(own.raw, special=own.special, chat_template=WITH_TOOLS)
        caches = self.model.caches(capacity=4096)
        self.cache = kv.PrefixCache(caches, fingerprint=self.model.fingerprint, **{"host_bytes": 1 << 22, **options})
        self.app: Any = self.made(Settings(1024, max_sessions=4, max_waiting=4))
        self.engine = self.app.state.engine
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda *_: None)  # of tasks whose error nobody asked for
        self.page = Call(Way("page", "/events", {}, "GET"))
        if watched:
            self._page = self.loop.create_task(self.page.made(self.app))
            self.until(lambda: self.app.state.watch.count == 1)

    def made(self, settings: Settings) -> Any:
        """The application."""
        return create_app(self.model, self.cache, "naming", settings)

    def ask(self, call: Call) -> Call:
        """The same call when it has ended, whatever is raised in the loop meanwhile."""
        task = self.loop.create_task(call.made(self.app))
        end = time.monotonic() + HANGS
        while not task.done() and not call.hangs:
            try:
                self.loop.run_until_complete(asyncio.wait({task}, timeout=HANGS))
            except BaseException as error:  # a KeyboardInterrupt of another task
                call.raised = call.raised or error
            call.hangs = time.monotonic() > end
        return call

    def until(self, what: Callable[[], bool]) -> bool:
        """Lets the loop run until that is so; False where it does not become so."""
        end = time.monotonic() + HANGS
        while not what():
            if time.monotonic() > end:
                return False
            self.loop.run_until_complete(asyncio.sleep(0.001))
        return True

    def left_over(self) -> str:
        """What a request that has ended still holds, in words."""
        pages = 1 if hasattr(self, "_page") else 0
        gc.collect()
        counts = self.engine.batcher.stats
        if not self.until(lambda: len(asyncio.all_tasks(self.loop)) <= _OF_A_PAGE * pages):
            return f"tasks are left: {asyncio.all_tasks(self.loop)}, and requests: {counts()}"
        if not self.until(lambda: counts()["active"] + counts()["waiting"] == 0):  # no task is there to bring another
            return f"requests are left: {counts()}"
        gc.collect()  # what those had
        totals = counts()
        if totals["submitted"] != totals["finished"] + totals["cancelled"] + totals["failed"]:
            return f"totals: {totals}"
        return self._left_in_the_books(pages) or self._left_in_the_cache()

    def _left_in_the_books(self, pages: int) -> str:
        journal, watch = self.engine.journal, self.app.state.watch
        ended = sum(journal.outcomes.values())
        running = [each for each in journal.entries if each.outcome == "running"]
        if running:
            return f"the journal has as running: {running}"
        if journal.entries and journal.entries[-1].number > ended:
            return f"the journal has {journal.entries[-1].number} requests and counts {ended}"
        if watch.count != (pages and not self._page.done()):  # one that the exception met has ended
            return f"{watch.count} pages watch"
        replays = self.engine._replays
        characters = sum(len(each.text) for each in replays._kept.values())
        if replays._characters not in (None, characters):
            return f"replays have {characters} characters and count {replays._characters}"
        return ""

    def _left_in_the_cache(self) -> str:
        if self.cache.closed:
            return ""
        sessions = self.cache.stats()["sessions"]
        found = self.cache.check()
        return f"{sessions} sessions, check: {found}" if sessions or found else ""

    def close(self) -> None:
        if hasattr(self, "_page"):
            self.page.leave()
            self.loop.run_until_complete(asyncio.wait({self._page}))
        self.engine.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class Call:
    """One request. ``leaves``: its client does behind so many messages; ``messages``: those that it heard."""

    def __init__(self, way: Way, leaves: int | None = None) -> None:
        self.way = way
        self.messages: list[Any] = []
        self.raised: BaseException | None = None
        self.passed = 0
        self.hangs = False
        self._leaves = leaves
        self._gone = asyncio.Event()
        self._given = False

    async def made(self, app: Any) -> None:
        if self._leaves == 0:
            self.leave()
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException as error:
            self.raised = error
        self.leave()  # a server ends the connection, or has sent all of it

    @property
    def scope(self) -> dict[str, Any]:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.way.method,
            "scheme": "http",
            "path": self.way.path,
            "raw_path": self.way.path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            "client": None,
            "server": None,
        }

    @property
    def body(self) -> bytes:
        return json.dumps(self.way.body).encode()

    def leave(self) -> None:
        self._gone.set()

    async def receive(self) -> Any:
        if not self._given and not self._gone.is_set():
            self._given = True
            self._pass()
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if not self._gone.is_set():
            self.messages.append(message)
            self._pass()

    def _pass(self) -> None:
        self.passed += 1
        if self.passed == self._leaves:
            self.leave()


class Told(NamedTuple):
    """``kind``: "answer", "error" with a status and a name, "broken" where the end never came, or "nothing"."""

    kind: str
    status: int
    value: Any = None


def told(call: Call) -> Told:
    """What the client was told."""
    if call.hangs:
        return Told("nothing, and hangs", 0)
    if not call.messages:
        return Told("nothing", 0)
    start, *rest = call.messages
    status, body = start["status"], b"".join(each.get("body", b"") for each in rest)
    whole = bool(rest) and not rest[-1].get("more_body", False)
    kind = dict(start["headers"]).get(b"content-type", b"")
    if status == 200 and b"text/event-stream" in kind:
        return _told_by_stream(body, whole)
    if status == 200 and b"ndjson" in kind:
        return _told_by_lines(body, whole)
    if not whole:
        return Told("broken", status)
    if not body:
        return Told("nothing", status)
    if status == 200:
        return Told("answer", status, _steady(json.loads(body)) if call.way.path != "/metrics" else None)
    error = json.loads(body)["error"]
    return Told("error", status, "an error" if isinstance(error, str) else error["type"])


def _told_by_stream(body: bytes, whole: bool) -> Told:
    """An answer where its last event is there. Events of several answers come in any order, those of one in its own."""
    data = [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]
    events = [each if each == DONE else json.loads(each) for each in data]
    ends = [at for at, each in enumerate(events) if each == DONE or each.get("type") in ENDS]
    if ends:
        by_answer: dict[int, list[Any]] = {}
        for each in events[: ends[0] + 1]:
            choices = [] if each == DONE else each.get("choices", [])
            by_answer.setdefault(choices[0]["index"] if choices else -1, []).append(_steady(each))
        return Told("answer", 200, by_answer)
    if events and events[-1].get("type") == "response.failed":
        return Told("error", 200, events[-1]["response"]["error"]["code"])
    if events and "error" in events[-1]:
        return Told("error", 200, events[-1]["error"]["type"])
    return Told("complete without its end" if whole else "broken", 200, len(events))


def _told_by_lines(body: bytes, whole: bool) -> Told:
    lines = [json.loads(line) for line in body.decode().splitlines() if line.endswith("}")]
    if lines and lines[-1].get("done"):
        return Told("answer", 200, _steady(lines))
    if lines and "error" in lines[-1]:
        return Told("error", 200, "an error")
    return Told("complete without its end" if whole else "broken", 200, len(lines))


def _steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _steady(each) for name, each in value.items() if name not in CHANGING}
    return [_steady(each) for each in value] if isinstance(value, list) else value
