"""Conversations as files: JSON of messages, with branches.

    {"format": "kvtrie chat", "version": 1, "system": "", "current": "main",
     "branches": {"main": 1, "other": 0},
     "turns": [{"after": null, "messages": [{"role": "user", ...}, {"role": "assistant", ...}], "tokens": [12, 7]},
               {"after": 0, "messages": [...]}]}

A turn comes after an earlier one, by its place in the list. ``tokens`` are those of the answer, for a model whose
tokenizer decodes them to it; they may be missing. What a model thought is its message's ``reasoning_content``, also by
its other names. A plain list of messages, as other programs keep it, loads as one
branch.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kvtrie as kv
from kvtrie._paths import path_text

from ...thinking.reasoning import NAMES
from .conversation import FIRST_BRANCH, Conversation, Turn

FORMAT, VERSION = "kvtrie chat", 1


def save(conversation: Conversation, path: str) -> Path:
    """Writes all of it, or nothing. ``kv.errors.ArgumentError`` for a file that is something else, or cannot be
    written."""
    target = Path(path_text(path, "save", "file"))
    if target.exists() and not _is_ours(target):
        raise kv.errors.ArgumentError(
            f"[save] file: got {path!r}, which exists and is no conversation, allowed a new file"
        )
    text = json.dumps(to_json(conversation), ensure_ascii=False, indent=1) + "\n"
    try:
        _replace(target, text)
    except OSError as error:
        raise kv.errors.ArgumentError(
            f"[save] file: got {path!r}, allowed a file to write: {error.strerror}"
        ) from error
    return target


def load(path: str) -> Conversation:
    """Raises ``kv.errors.FormatError`` for what is no conversation, and names what is wrong."""
    try:
        text = Path(path_text(path, "load", "file")).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise kv.errors.FormatError(f"[load] file: got {path!r}, allowed a file to read: {reason}") from error
    try:
        return from_json(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise kv.errors.FormatError(f"[load] file: got {path!r}, allowed JSON: {error}") from error


def to_json(conversation: Conversation) -> dict[str, Any]:
    turns = conversation.all_turns()
    place = {turn: index for index, turn in enumerate(turns)}
    return {
        "format": FORMAT,
        "version": VERSION,
        "system": conversation.system,
        "current": conversation.current,
        "branches": {name: None if tip is None else place[tip] for name, tip in conversation.branches.items()},
        "turns": [
            {
                "after": None if turn.parent is None else place[turn.parent],
                "messages": turn.messages,
                "tokens": list(turn.tokens),
            }
            for turn in turns
        ],
    }


def from_json(value: Any) -> Conversation:
    if isinstance(value, list):
        return _of_messages(value)
    _require(isinstance(value, dict) and value.get("format") == FORMAT, "format", f"{FORMAT!r}, or a list of messages")
    _require(value.get("version") == VERSION, "version", str(VERSION))
    system = _text(value.get("system", ""), "system")
    turns = _turns(value.get("turns"))
    branches = value.get("branches")
    _require(isinstance(branches, dict) and len(branches) > 0, "branches", "names, each with its last turn")
    tips: dict[str, Turn | None] = {}
    for name, index in branches.items():
        _require(name.isprintable() and name and not any(map(str.isspace, name)), "branches", "names without blanks")
        tips[name] = _at(turns, index, f"branches: {name}")
    current = value.get("current")
    _require(isinstance(current, str) and current in tips, "current", f"one of {', '.join(branches)}")
    return Conversation(system, tips, current)


def _turns(rows: Any) -> list[Turn]:
    _require(isinstance(rows, list), "turns", "a list")
    turns: list[Turn] = []
    for index, row in enumerate(rows):
        where = f"turns[{index}]"
        _require(isinstance(row, dict), where, "an object")
        messages = row.get("messages")
        _require(isinstance(messages, list) and len(messages) == 2, f"{where}.messages", "a question and its answer")
        question, answer = (_content(message, role, where) for message, role in zip(messages, ("user", "assistant")))
        tokens = row.get("tokens", [])
        whole = isinstance(tokens, list) and all(type(token) is int and 0 <= token < 2**31 for token in tokens)
        _require(whole, f"{where}.tokens", "a list of token ids")
        after, reasoning = _at(turns, row.get("after"), f"{where}.after"), _reasoning(messages[1], where)
        turns.append(Turn(after, question, answer, tuple(tokens), reasoning))
    return turns


def _of_messages(rows: list[Any]) -> Conversation:
    """One branch of messages in turn; what comes after the last answer is left out."""
    roles = [row.get("role") if isinstance(row, dict) else None for row in rows]
    first = int(roles[:1] == ["system"])
    wanted = ["user", "assistant"] * (len(rows) // 2 + 1)
    _require(roles[first:] == wanted[: len(rows) - first], "roles", "system, if any, then user and assistant in turn")
    conversation = Conversation(_content(rows[0], "system", "messages[0]") if first else "")
    for index in range(first, len(rows) - 1, 2):
        question = _content(rows[index], "user", f"messages[{index}]")
        answer = _content(rows[index + 1], "assistant", f"messages[{index + 1}]")
        reasoning = _reasoning(rows[index + 1], f"messages[{index + 1}]")
        conversation.add(conversation.tip, question, answer, reasoning=reasoning)
    assert conversation.current == FIRST_BRANCH
    return conversation


def _at(turns: Sequence[Turn], index: Any, where: str) -> Turn | None:
    if index is None:
        return None
    _require(type(index) is int and 0 <= index < len(turns), where, "null, or the place of an earlier turn")
    found: Turn = turns[index]
    return found


def _content(message: Any, role: str, where: str) -> str:
    _require(isinstance(message, dict) and message.get("role") == role, where, f"a message with the role {role!r}")
    return _text(message.get("content"), f"{where}: content of {role}")


def _reasoning(message: Mapping[str, object], where: str) -> str:
    """REQUIRES: it has a role."""
    found = next((message[name] for name in NAMES if message.get(name) is not None), "")
    return _text(found, f"{where}: reasoning of assistant")


def _text(value: Any, where: str) -> str:
    _require(isinstance(value, str), where, "a text")
    return str(value)


def _require(good: bool, where: str, allowed: str) -> None:
    if not good:
        raise kv.errors.FormatError(f"[load] {where}: got something else, allowed {allowed}")


def _is_ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return f'"{FORMAT}"' in file.read(200)
    except (OSError, ValueError):
        return False


def _replace(target: Path, text: str) -> None:
    """Readable by its owner only. A file beside it, with a name that is known before there is one, takes its place."""
    beside = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with open(beside, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(text)
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
