"""Which chat templates a checkpoint has, and which of them is meant.

A checkpoint may have several by name: "default", "tool_use" where tools are given, "rag" and others where they are
asked for. Where they stand, as transformers looks for them:

    chat_template.jinja, additional_chat_templates/NAME.jinja    before all else; then nothing below is read
    tokenizer_config.json, "chat_template"                       one text, or {"name": ..., "template": ...} in a list
    chat_template.json, processor_config.json                    of the processors of multimodal checkpoints
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import ArgumentError, FormatError, NotSupportedError
from .weights import read_json

Templates = dict[str, str]  # by name

_FILE, _FOLDER = "chat_template.jinja", "additional_chat_templates"
_CONFIG = "tokenizer_config.json"
_PROCESSORS = ("chat_template.json", "processor_config.json")
_MARKS = ("{{", "{%", "{#")  # of Jinja: a text with none of them is a name that was mistyped


def in_folder(folder: Path, settings: Mapping[str, object]) -> Templates:
    """``settings``: of tokenizer_config.json. Raises ``kv.errors.FormatError`` naming the file that is wrong."""
    found = {path.stem: _read(path) for path in sorted((folder / _FOLDER).glob("*.jinja"))}
    if (folder / _FILE).exists():
        found["default"] = _read(folder / _FILE)
    found = found or named(settings.get("chat_template"), folder / _CONFIG)
    for name in _PROCESSORS:
        path = folder / name
        found = found or named(read_json(path, required=False).get("chat_template"), path)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"[models.load] {path}: cannot be read: {error}") from error


def named(value: object, path: Path) -> Templates:
    """The value under the key "chat_template" of a file."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    pairs = list(value.items()) if isinstance(value, dict) else [(None, None)]
    if isinstance(value, list) and value:
        pairs = [(each.get("name"), each.get("template")) if isinstance(each, dict) else (each, None) for each in value]
    if not all(isinstance(part, str) for pair in pairs for part in pair):
        allowed = "a text, or a list of objects with a name and a template"
        raise FormatError(f"[models.load] {path}: chat_template: got {type(value).__name__}, allowed {allowed}")
    return dict(pairs)


def chosen(templates: Templates, wanted: str | None, has_tools: bool) -> str:
    """The template that ``wanted`` names or is; else "tool_use" where there are tools, else "default".

    Raises ``kv.errors.NotSupportedError`` where there is none at all, ``kv.errors.ArgumentError`` naming those that
    there are.
    """
    if wanted is not None:
        if wanted in templates:
            return templates[wanted]
        if not any(mark in wanted for mark in _MARKS):
            allowed = ", ".join(["a template", *sorted(templates)])
            raise ArgumentError(f"[tokenizer] chat_template: got {wanted[:60]!r}, allowed {allowed}")
        return wanted
    if not templates:
        raise NotSupportedError("[tokenizer] this checkpoint has no chat template; use encode() on plain text")
    if has_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        allowed = ", ".join(sorted(templates))
        got = "none, and no default among this checkpoint's chat templates" + ("" if has_tools else "; no tools")
        raise ArgumentError(f"[tokenizer] chat_template: got {got}, allowed one by name: {allowed}")
    return templates["default"]
