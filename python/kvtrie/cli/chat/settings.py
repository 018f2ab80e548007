"""The settings of a chat: how tokens are chosen, and how long an answer may be."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import kvtrie as kv

from .thinking import WORDS


class Setting(NamedTuple):
    """``least`` and ``most`` of what is allowed are ``kv.Sampling``'s to know; ``allowed`` tells people. ``words``: it
    is one of these, and no number."""

    name: str
    whole: bool
    allowed: str
    meaning: str
    words: tuple[str, ...] = ()


SETTINGS = (
    Setting("temperature", False, "0 or more", "0 takes the likeliest token; higher is more varied"),
    Setting("top_k", True, "0 or more", "among so many of the likeliest; 0: all"),
    Setting("top_p", False, "above 0, up to 1", "among those that together reach this probability"),
    Setting("min_p", False, "0 to 1", "at least this part of the likeliest one's probability"),
    Setting("typical_p", False, "above 0, up to 1", "among those closest to the expected surprise"),
    Setting("repetition_penalty", False, "above 0", "above 1: less of what stands in the text"),
    Setting("presence_penalty", False, "any number", "taken off what was said in the answer, once"),
    Setting("frequency_penalty", False, "any number", "taken off what was said in the answer, each time"),
    Setting("seed", True, "0 or more, or random", "the same seed and text give the same answer"),
    Setting("max_tokens", True, "1 or more", "longest answer, in tokens, with its reasoning"),
    Setting("thinking", False, ", ".join(WORDS), "whether, or how hard, a model thinks first", tuple(WORDS)),
    Setting("reasoning", False, "shown, hidden", "what it thinks, on the screen", ("shown", "hidden")),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


class Settings:
    """``sampling``, ``max_tokens``, ``thinking`` and ``reasoning`` are right at any time: what is refused has changed
    nothing. Whether a model knows a word of ``thinking``, that model says."""

    def __init__(
        self, sampling: kv.Sampling, max_tokens: int = 512, thinking: str = "auto", reasoning: str = "shown"
    ) -> None:
        self.sampling = sampling
        self.max_tokens = _checked_length(max_tokens)
        self.thinking = str(parsed("thinking", thinking))
        self.reasoning = str(parsed("reasoning", reasoning))

    def set(self, name: str, text: str) -> None:
        """Raises ``kv.errors.ArgumentError`` that says what is allowed."""
        value = parsed(name, text)
        if name == "max_tokens":
            self.max_tokens = _checked_length(value)
        elif find(name).words:
            setattr(self, name, value)
        else:
            self.sampling = dataclasses.replace(self.sampling, **{name: value})

    def shown(self, name: str) -> str:
        value = getattr(self.sampling if hasattr(self.sampling, name) else self, name)
        return "random" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    def options(self, tries: int = 0) -> dict[str, Any]:
        """For ``kv.generate``. Each of the ``tries`` before moves the seed on by one."""
        sampling = {field.name: getattr(self.sampling, field.name) for field in dataclasses.fields(self.sampling)}
        seed = self.sampling.seed
        return {**sampling, "seed": None if seed is None else seed + tries, "max_tokens": self.max_tokens}


def find(name: str) -> Setting:
    if name not in _BY_NAME:
        raise kv.errors.ArgumentError(f"[set] name: got {name!r}, allowed {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


def parsed(name: str, text: str) -> Any:
    """Its value. Raises ``kv.errors.ArgumentError`` that says what is allowed."""
    setting = find(name)
    if setting.words and text not in setting.words:
        raise kv.errors.ArgumentError(f"[set] {name}: got {text!r}, allowed {setting.allowed}")
    if setting.words:
        return text
    if setting.name == "seed" and text == "random":
        return None
    try:
        return int(text) if setting.whole else float(text)
    except ValueError:
        raise kv.errors.ArgumentError(f"[set] {setting.name}: got {text!r}, allowed {setting.allowed}") from None


def _checked_length(value: int) -> int:
    if value < 1:
        raise kv.errors.ArgumentError(f"[set] max_tokens: got {value}, allowed 1 or more")
    return value
