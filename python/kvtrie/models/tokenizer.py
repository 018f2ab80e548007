"""Text to token ids and back: the ``tokenizers`` library, the checkpoint's chat template, and streaming.

Chat templates are run by chat_template.py.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .._arguments import MOST_ITEMS, converting, flag, refusal
from .._arguments import text as utf8_text
from ..errors import ArgumentError, FormatError, IgnoredWarning, NotSupported
from .weights import read_json

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Message = Mapping[str, Any]


def _ids(tokens: Iterable[int], where: str) -> list[int]:
    """The ids as plain integers."""
    with converting(tokens, where, "tokens", "a sequence of integers"):
        ids = [operator.index(token) for token in islice(tokens, MOST_ITEMS)]
    for wrong in (token for token in ids if not 0 <= token < 1 << 31):
        raise ArgumentError(f"[{where}] tokens: got {wrong}, allowed 0 to {(1 << 31) - 1}")
    return ids


class Tokenizer:
    """A checkpoint's tokenizer. Read-only and safe to share between threads.

    ``raw`` is the ``tokenizers.Tokenizer``; ``special`` maps names such as "eos_token" to their text. ``twins``: ids
    that no text leads to, and for each the one whose text it has.
    """

    def __init__(
        self,
        raw: Any,
        *,
        special: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        twins: Mapping[int, int] | None = None,
    ) -> None:
        self.raw = raw
        self.special: dict[str, str] = dict(special or {})
        self.chat_template = chat_template
        self.twins: dict[int, int] = dict(twins or {})
        self._template: ChatTemplate | None = None
        self._told: set[str] = set()

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to this, special and added tokens included."""
        return int(self.raw.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``; ``add_special_tokens`` lets the tokenizer add what it always adds (a leading bos)."""
        checked = utf8_text(text, "tokenizer.encode", "text")
        special = flag(add_special_tokens, "tokenizer.encode", "add_special_tokens")
        return list(self.raw.encode(checked, add_special_tokens=special).ids)

    def decode(self, tokens: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ``tokens``. Bytes that are not whole UTF-8 characters come out as U+FFFD; ids that the tokenizer
        does not know, as a model may have more, give no text."""
        ids = _ids(tokens, "tokenizer.decode")
        skip = flag(skip_special_tokens, "tokenizer.decode", "skip_special_tokens")
        if self.twins:
            ids = [self.twins.get(token, token) for token in ids]
        return str(self.raw.decode(ids, skip_special_tokens=skip))

    def token_id(self, token: str) -> int | None:
        """The id of one exact token, or None."""
        found = self.raw.token_to_id(utf8_text(token, "tokenizer.token_id", "token"))
        return None if found is None else int(found)

    def special_id(self, text: str) -> int | None:
        """The id of the special token ``text``, which decoding may skip; None where it is none."""
        found = self.token_id(text)
        added = {} if found is None else self.raw.get_added_tokens_decoder()
        return found if found in added and added[found].special else None

    def stream(self, skip_special_tokens: bool = True) -> Detokenizer:
        """A new incremental decoder: feed tokens, get text."""
        return Detokenizer(self, flag(skip_special_tokens, "tokenizer.stream", "skip_special_tokens"))

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[True] = ...,
        **variables: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[False],
        **variables: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> list[int] | str:
        """Messages ({"role", "content"}) laid out by the checkpoint's own template: token ids, or text.

        ``variables`` are passed to the template (``tools``, ``enable_thinking``, ...); that it takes no notice of
        ``tools`` or ``documents`` is told once, as a ``kv.IgnoredWarning``. Raises ``kv.NotSupported`` when
        the checkpoint has no template and ``kv.ArgumentError`` when the template refuses the messages, fails, or takes
        more work than a template needs (chat_template.py).
        """
        from .chat_template import ChatTemplate

        if self.chat_template is None:
            raise NotSupported("[tokenizer] this checkpoint has no chat template; use encode() on plain text")
        if self._template is None:
            self._template = ChatTemplate(self.chat_template)
        flag(tokenize, "tokenizer", "tokenize")
        flag(add_generation_prompt, "tokenizer", "add_generation_prompt")
        given: object = messages
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes, range)):
            raise refusal(messages, "tokenizer", "messages", "a sequence of messages")
        self._tell_ignored(self._template, variables)
        values = {**self.special, "tools": None, "documents": None, **variables}
        text = self._template.render(
            {"messages": list(messages), "add_generation_prompt": add_generation_prompt, **values}
        )
        return self.encode(text, add_special_tokens=False) if tokenize else text

    def _tell_ignored(self, template: ChatTemplate, variables: Mapping[str, Any]) -> None:
        for name in ("tools", "documents"):
            given = variables.get(name)
            with converting(given, "tokenizer", name, "a list, or None"):
                asked = bool(given)
            if asked and name not in template.names and name not in self._told:
                self._told.add(name)
                text = f"[tokenizer] {name}: this checkpoint's chat template takes no notice of them"
                warnings.warn(text, IgnoredWarning, stacklevel=3)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The tokenizer of a checkpoint folder, or None if it has no tokenizer.json."""
        path = folder / "tokenizer.json"
        if not path.exists():
            return None
        import tokenizers

        try:
            raw = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for every kind of damage
            raise FormatError(f"[models.load] {path}: not a tokenizer: {error}") from error
        settings = read_json(folder / "tokenizer_config.json", required=False)
        special = {}
        for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
            value = settings.get(name)
            value = value.get("content") if isinstance(value, dict) else value
            if isinstance(value, str):
                special[name] = value
        return cls(raw, special=special, chat_template=_find_template(folder, settings))


class Detokenizer:
    """Turns a stream of tokens into pieces of text that never split a character.

    A token may end inside a UTF-8 character, and a decoder may treat the first token of a text specially. So each piece
    is the difference of two decodings that start at the same earlier token, and is held back while it ends in U+FFFD.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids: list[int] = []
        self._start = 0  # both decodings start here
        self._given = 0  # tokens whose text was handed out

    def feed(self, token: int) -> str:
        """The text that became complete with ``token``; "" while a character is unfinished."""
        self._ids += _ids((token,), "tokenizer.stream")
        text = self._pending()
        if text.endswith("\ufffd"):
            return ""
        if text:
            self._start = self._given
        self._given = len(self._ids)
        if self._start > 64:
            del self._ids[: self._start]
            self._given -= self._start
            self._start = 0
        return text

    def finish(self) -> str:
        """What is still held back, with U+FFFD where bytes are missing."""
        text = self._pending()
        self._start = self._given = len(self._ids)
        return text

    def _pending(self) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._given], self._skip)
        return self._tokenizer.decode(self._ids[self._start :], self._skip)[len(before) :]


def _find_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja wins over tokenizer_config.json, where several named ones may stand."""
    path = folder / "chat_template.jinja"
    if path.exists():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"[models.load] {path}: cannot be read: {error}") from error
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None
