"""Text to token ids and back: the ``tokenizers`` library, the checkpoint's chat template, and streaming.

Chat templates are run by chat_template.py.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .._arguments import MOST_ITEMS, converting, flag, refusal, shown
from .._arguments import text as utf8_text
from ..errors import ArgumentError, FormatError, IgnoredWarning, NotSupported
from .prompts import Rendered, rendered
from .special_tokens import SpecialTokens

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Message = Mapping[str, Any]
TextReading = Literal["parse", "letters"]


def text_reading(value: object, where: str) -> TextReading:
    """What is made of special tokens that stand in a text. Raises ``kv.ArgumentError`` for what is neither."""
    if value == "parse":
        return "parse"
    if value == "letters":
        return "letters"
    raise ArgumentError(f"[{where}] special_tokens: got {shown(value)}, allowed 'letters' or 'parse'")


def _ids(tokens: Iterable[int], where: str) -> list[int]:
    """The ids as plain integers."""
    with converting(tokens, where, "tokens", "a sequence of integers"):
        ids = [operator.index(token) for token in islice(tokens, MOST_ITEMS)]
    for wrong in (token for token in ids if not 0 <= token < 1 << 31):
        raise ArgumentError(f"[{where}] tokens: got {wrong}, allowed 0 to {(1 << 31) - 1}")
    return ids


class Tokenizer:
    """A checkpoint's tokenizer. Read-only and safe to share between threads.

    ``raw`` is the ``tokenizers.Tokenizer``; ``special`` maps names such as "eos_token" to their text.
    """

    def __init__(
        self,
        raw: Any,
        *,
        special: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        begins_chats: bool | None = None,
    ) -> None:
        """``begins_chats``: whether prompts of chats begin with bos; None: as every other text does."""
        raw.no_truncation()  # what a file says of how long texts were in training cuts no prompt
        raw.no_padding()
        self.raw = raw
        self.special: dict[str, str] = dict(special or {})
        self.chat_template = chat_template
        self._begins_chats = begins_chats
        self._template: ChatTemplate | None = None
        self._told: set[str] = set()

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to this, special and added tokens included."""
        return int(self.raw.get_vocab_size(with_added_tokens=True))

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """Those that end turns and texts, call tools, and the like, and how they are told from letters."""
        return SpecialTokens(self.raw)

    def encode(self, text: str, add_special_tokens: bool = True, special_tokens: TextReading = "parse") -> list[int]:
        """Token ids of ``text``; ``add_special_tokens`` lets the tokenizer add what it always adds (a leading bos).

        A text that has it already does not get it twice. ``special_tokens``: "parse" makes one of each that stands in
        the text, "letters" of none, for a text that somebody else wrote.
        """
        checked = utf8_text(text, "tokenizer.encode", "text")
        adding = flag(add_special_tokens, "tokenizer.encode", "add_special_tokens")
        if text_reading(special_tokens, "tokenizer.encode") == "letters":
            own = self.special_tokens.encode(checked, ())
        else:
            own = list(self.raw.encode(checked, add_special_tokens=False).ids)
        return self._with_ends(own, parsed=special_tokens == "parse") if adding else own

    @cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after every text: token ids."""
        added = self.raw.encode("a", add_special_tokens=True).special_tokens_mask
        ids = self.raw.encode("a", add_special_tokens=True).ids
        own = self.raw.encode("a", add_special_tokens=False).ids
        before = next((at for at, one in enumerate(added) if not one), len(ids) - len(own))
        return ids[:before], ids[before + len(own) :]

    def _with_ends(self, own: list[int], parsed: bool) -> list[int]:
        before, after = self.ends
        begun = parsed and bool(before) and own[: len(before)] == before
        ended = parsed and bool(after) and own[len(before) * begun :][-len(after) :] == after
        return [*([] if begun else before), *own, *([] if ended else after)]

    def decode(self, tokens: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ``tokens``. Bytes that are not whole UTF-8 characters come out as U+FFFD; ids that the tokenizer
        does not know, as a model may have more, give no text."""
        ids = _ids(tokens, "tokenizer.decode")
        skip = flag(skip_special_tokens, "tokenizer.decode", "skip_special_tokens")
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
        special_tokens: TextReading = ...,
        **variables: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[False],
        special_tokens: TextReading = ...,
        **variables: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        special_tokens: TextReading = "letters",
        **variables: Any,
    ) -> list[int] | str:
        """Messages ({"role", "content"}) laid out by the checkpoint's own template: token ids, or text.

        Token ids begin with bos once where the tokenizer puts it before texts, whether or not the template writes it.
        What stands in messages and variables is letters (prompts.py), also where it looks like a special token;
        ``special_tokens="parse"`` makes one of it. A text does not say which is which.

        ``variables`` are passed to the template (``tools``, ``enable_thinking``, ...); that it takes no notice of
        ``tools`` or ``documents`` is told once, as a ``kv.IgnoredWarning``. Raises ``kv.NotSupported`` when
        the checkpoint has no template and ``kv.ArgumentError`` when the template refuses the messages, fails, or takes
        more work than a template needs (chat_template.py).
        """
        wanted, asked = flag(tokenize, "tokenizer", "tokenize"), text_reading(special_tokens, "tokenizer")
        prompt = self.rendered(messages, add_generation_prompt, asked if wanted else "parse", variables)
        return self.ids_of(prompt) if wanted else prompt.text

    def rendered(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        special_tokens: TextReading = "letters",
        variables: Message | None = None,
    ) -> Rendered:
        """The prompt of these messages as text that knows its special tokens, for :meth:`ids_of`; arguments and errors
        are those of :meth:`apply_chat_template`."""
        from .chat_template import ChatTemplate

        if self.chat_template is None:
            raise NotSupported("[tokenizer] this checkpoint has no chat template; use encode() on plain text")
        if self._template is None:
            self._template = ChatTemplate(self.chat_template)
        flag(add_generation_prompt, "tokenizer", "add_generation_prompt")
        sequence: object = messages
        if not isinstance(sequence, Sequence) or isinstance(sequence, (str, bytes, range)):
            raise refusal(messages, "tokenizer", "messages", "a sequence of messages")
        if variables and "messages" in variables:
            raise ArgumentError("[tokenizer] variables: got one named messages, allowed other names")
        given = {**(variables or {}), "messages": list(messages)}
        self._tell_ignored(self._template, given)
        own = {**self.special, "tools": None, "documents": None, "add_generation_prompt": add_generation_prompt}
        if special_tokens == "parse":
            return Rendered(self._template.render({**own, **given}))
        own = {name: value for name, value in own.items() if name not in given}
        return rendered(self._template.render, given, own, self.special_tokens, self.chat_template)

    def ids_of(self, prompt: Rendered) -> list[int]:
        """Token ids of the prompt of a chat."""
        text = utf8_text(prompt.text, "tokenizer", "messages")
        marks = self.special_tokens.find(text) if prompt.marks is None else prompt.marks
        ids = self.special_tokens.encode(text, marks, behind=prompt.behind)
        first = marks[0] if marks and not text[: marks[0].start].strip() else None
        begin = [] if prompt.behind else self._beginning
        return ids if not begin or ids[: len(begin)] == begin or [first and first.token] == begin else [*begin, *ids]

    @cached_property
    def _beginning(self) -> list[int]:
        """Of the prompts of chats: token ids."""
        if self._begins_chats is None:
            return self.ends[0]
        bos = self.token_id(self.special.get("bos_token", ""))
        return [] if bos is None or not self._begins_chats else [bos]

    def _tell_ignored(self, template: ChatTemplate, variables: Message) -> None:
        for name in ("tools", "documents"):
            given = variables.get(name)
            with converting(given, "tokenizer", name, "a list, or None"):
                asked = bool(given)
            if asked and name not in template.names and name not in self._told:
                self._told.add(name)
                text = f"[tokenizer] {name}: this checkpoint's chat template takes no notice of them"
                warnings.warn(text, IgnoredWarning, stacklevel=4)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The tokenizer of a checkpoint folder, or None if it has no tokenizer.json."""
        from .tokenizer_files import read_folder

        parts = read_folder(folder)
        if parts is None:
            return None
        template = _find_template(folder, parts.settings)
        return cls(parts.raw, special=parts.special, chat_template=template, begins_chats=parts.begins_chats)


def of_another_form(folder: Path) -> Path | None:
    """A tokenizer's file that is not read, where there is no ``tokenizer.json``."""
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model")
    found = next((folder / name for name in (*names, "spiece.model") if (folder / name).exists()), None)
    return None if found is None or found.name == "tokenizer.json" else found


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


def _find_template(folder: Path, settings: Mapping[str, object]) -> str | None:
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
