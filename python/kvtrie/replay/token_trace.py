"""Our own trace format: sessions that append, branch, roll back and generate, token by token. docs/simulate.md has it.

    {"t": 0.0, "session": "a", "ops": [["append", {"seed": 1, "n": 900}], ["generate", 200]]}
    {"t": 9.5, "session": "b", "parent": "a", "ops": [["branch", 900], ["append", [4, 8]], ["generate", 50], ["end"]]}

A request is a ``generate``: its prompt is all that the session holds at that moment. Appended tokens that no generate
follows are a request of their own at the end of the line, which generates nothing. Between lines a session holds no
cells: whether what it had is still there is what the replay finds out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import numpy as np

from .._arguments import converting, each_of
from .._paths import path_text
from .lines import LARGEST, MOST_TOKENS, Line, PathLike, lines_of, opened
from .tokens import NO_TOKENS, Int32Array, seed_of, stream
from .traces import Request, Trace

MOST_HELD = 1 << 28  # in all sessions that have not ended
MOST_SEED = (1 << 63) - 1
FIELDS = {"t", "session", "parent", "namespace", "ops"}
OPS = {"append": 1, "branch": 1, "rollback": 1, "generate": 1, "end": 0}  # and how many arguments each has

Record = dict[str, Any]


def read_tokens(path: PathLike) -> Trace:
    """The requests of a token-level file. Memory: the tokens of the sessions that have not ended."""
    name = Path(path_text(path, "read_tokens", "trace")).name
    return Trace(name, lambda: Player().play(lines_of(path)))


def of_records(records: Iterable[Record], name: str = "records") -> Trace:
    """The requests of records, as a generator makes them, without a file."""
    kept = list(each_of(records, dict, "of_records", "records", "dicts"))
    lines = [Line(name, number, fields) for number, fields in enumerate(kept, 1)]
    return Trace(name, lambda: Player().play(lines))


def write_tokens(records: Iterable[Record], path: PathLike) -> int:
    """Writes records, one a line; returns the lines."""
    lines = 0
    kept = each_of(records, dict, "write_tokens", "records", "dicts")
    with opened(path, "wb", "write_tokens") as file:
        for record in kept:
            with converting(record, "write_tokens", "records", "what JSON can say"):
                line = json.dumps(record).encode()
            file.write(line + b"\n")
            lines += 1
    return lines


class History:
    """The tokens of one session: an array with room behind it."""

    __slots__ = ("generated", "length", "namespace", "room")

    def __init__(self, namespace: str, tokens: Int32Array = NO_TOKENS) -> None:
        self.namespace = namespace
        self.room = tokens.copy()
        self.length = len(tokens)
        self.generated = 0

    @property
    def tokens(self) -> Int32Array:
        held: Int32Array = self.room[: self.length]
        return held

    def append(self, tokens: Int32Array) -> None:
        end = self.length + len(tokens)
        if end > len(self.room):
            room = np.empty(max(end, min(2 * end, MOST_TOKENS)), np.int32)
            room[: self.length] = self.tokens
            self.room = room
        self.room[self.length : end] = tokens
        self.length = end


class Player:
    """Applies lines to the sessions they name, and yields the requests they make."""

    def __init__(self) -> None:
        self._sessions: dict[str, History] = {}
        self._ended: set[str] = set()
        self._held = 0
        self._before = 0.0

    def play(self, lines: Iterable[Line]) -> Iterator[Request]:
        for line in lines:
            yield from self._apply(line)

    def _apply(self, line: Line) -> Iterator[Request]:
        line.known(FIELDS)
        time = line.number_at_least("t", line.value("t"), self._before)
        name = line.text("session", line.value("session"))
        ops = line.value("ops")
        if not isinstance(ops, list) or not ops:
            line.fail("ops", ops, "a list of at least 1 operation")
        self._before = time
        history, first = self._session(line, name, ops)
        pending = False
        for index, op in enumerate(ops[first:], first):
            where = f"ops[{index}]"
            kind, argument = _operation(line, where, op)
            if kind == "generate":
                yield self._generate(line, where, argument, history, Request(time, history.tokens.copy(), session=name))
                pending = False
            elif kind == "append":
                pending = self._add(history, self._tokens(line, where, argument, history, None)) or pending
            elif kind == "rollback":
                self._cut(history, line.whole(where, argument, 0, history.length))
            elif kind == "branch":
                line.fail(where, op, "the first operation of a session with a parent")
            elif index + 1 < len(ops):
                line.fail(where, op, "end as the last operation")
            else:
                self._forget(name)
        if pending:
            yield Request(time, history.tokens.copy(), NO_TOKENS, history.namespace, name)

    def _generate(self, line: Line, where: str, spec: Any, history: History, prompt: Request) -> Request:
        output = self._tokens(line, where, spec, history, seed_of(prompt.session, history.generated))
        if history.length == 0:
            line.fail(where, ["generate", spec], "a session with at least 1 token to generate from")
        self._add(history, output)
        history.generated += 1
        return replace(prompt, output=output, namespace=history.namespace)

    def _add(self, history: History, tokens: Int32Array) -> bool:
        history.append(tokens)
        self._held += len(tokens)
        return len(tokens) > 0

    def _cut(self, history: History, length: int) -> None:
        self._held -= history.length - length
        history.length = length

    def _session(self, line: Line, name: str, ops: list[Any]) -> tuple[History, int]:
        """(the session's history, operations done): an old one, or a new one, branched where it has a parent."""
        if name in self._ended:
            line.fail("session", name, "a session that has not ended")
        parent: Optional[str] = line.fields.get("parent")
        history = self._sessions.get(name)
        if history is not None:
            if parent is not None:
                line.fail("parent", parent, f"none: session {name!r} is there already")
            self._check_namespace(line, history)
            return history, 0
        if parent is None:
            history = History(line.text("namespace", line.fields.get("namespace", "default")))
            self._sessions[name] = history
            return history, 0
        above = self._sessions.get(line.text("parent", parent))
        if above is None:
            line.fail("parent", parent, "a session of a line before that has not ended")
        self._check_namespace(line, above)
        kind, at = _operation(line, "ops[0]", ops[0])
        if kind != "branch":
            line.fail("ops[0]", ops[0], '["branch", length]: the session is new and has a parent')
        at = line.whole("ops[0]", at, 0, above.length)
        self._make_room(line, "ops[0]", at)
        history = self._sessions[name] = History(above.namespace, above.tokens[:at])
        self._held += at
        return history, 1

    def _check_namespace(self, line: Line, history: History) -> None:
        if "namespace" in line.fields and line.fields["namespace"] != history.namespace:
            line.fail("namespace", line.fields["namespace"], f"that of its session, {history.namespace!r}")

    def _forget(self, name: str) -> None:
        self._held -= self._sessions.pop(name).length
        self._ended.add(name)

    def _make_room(self, line: Line, where: str, count: int) -> None:
        if self._held + count > MOST_HELD:
            line.fail(f"{where}, tokens of all sessions", self._held + count, f"{MOST_HELD}: end some before")

    def _tokens(self, line: Line, where: str, spec: Any, history: History, own: Optional[int]) -> Int32Array:
        """The tokens that a token spec stands for; ``own``: the stream where only a count is given."""
        most = MOST_TOKENS - history.length
        if isinstance(spec, list):
            line.whole(f"{where}, tokens", len(spec), 0, most)
            for index, token in enumerate(spec):
                line.whole(f"{where}[{index}]", token)
            self._make_room(line, where, len(spec))
            return np.array(spec, np.int32)
        if own is not None and type(spec) is int:
            spec = {"seed": own, "n": spec}
        if not isinstance(spec, dict) or not {"seed", "n"} <= spec.keys() <= {"seed", "n", "from"}:
            allowed = 'a list of tokens or {"seed": s, "n": count, "from": offset, 0 where absent}'
            line.fail(where, spec, allowed + (" or a count" if own is not None else ""))
        count = line.whole(f"{where}, n", spec["n"], 0, most)
        seed = line.whole(f"{where}, seed", spec["seed"], 0, MOST_SEED)
        start = line.whole(f"{where}, from", spec.get("from", 0), 0, LARGEST)
        self._make_room(line, where, count)
        return stream(seed, start, count)


def _operation(line: Line, where: str, op: Any) -> tuple[str, Any]:
    if not isinstance(op, list) or not op or not isinstance(op[0], str) or op[0] not in OPS:
        line.fail(where, op, f"[name, ...] with one of {', '.join(OPS)}")
    if len(op) != 1 + OPS[op[0]]:
        line.fail(where, op, f"{OPS[op[0]]} arguments for {op[0]}")
    return op[0], op[1] if len(op) > 1 else None
