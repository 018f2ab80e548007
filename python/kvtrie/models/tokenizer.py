"""Text to token ids and back: the ``tokenizers`` library, the checkpoint's chat template, and streaming.

Chat templates are run by chat_template.py.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from .._arguments import MOST_ITEMS, converting, flag, refusal, shown
from .._arguments import text as utf8_text
from .._whole import Whole
from ..errors import ArgumentError, IgnoredWarning
from .prompts import Rendered, rendered
from .special_tokens import SpecialTokens, ids_of
from .token_bytes import ByteStream, NeighbourStream, TokenBytes

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Message = Mapping[str, Any]
TextReading = Literal["parse", "letters"]


def text_reading(value: object, where: str) -> TextReading:
    """How special tokens in a text are read. Raises ``kv.errors.ArgumentError`` for any other value."""
    if isinstance(value, str) and value == "parse":
        return "parse"
    if isinstance(value, str) and value == "letters":
        return "letters"
    raise ArgumentError(f"[{where}] special_tokens: got {shown(value)}, allowed 'letters' or 'parse'")


_MOST_COMPILED = 8  # templates that are kept; callers may give others
_teller: ContextVar[Callable[[str], object] | None] = ContextVar("teller", default=None)


@contextmanager
def telling(tell: Callable[[str], object]) -> Iterator[None]:
    """Tells ``tell``, and gives no warning, of parts that a template takes no notice of, in this thread or task."""
    token = _teller.set(tell)
    try:
        yield
    finally:
        _teller.reset(token)


def _ids(tokens: Iterable[int], where: str) -> list[int]:
    """The ids as plain integers."""
    with converting(tokens, where, "tokens", "a sequence of integers"):
        ids = [operator.index(token) for token in islice(tokens, MOST_ITEMS)]
    for wrong in (token for token in ids if not 0 <= token < 1 << 31):
        raise ArgumentError(f"[{where}] tokens: got {wrong}, allowed 0 to {(1 << 31) - 1}")
    return ids


class Tokenizer(Whole):
    """A checkpoint's tokenizer. Read-only and safe to share between threads.

    ``raw`` is the ``tokenizers.Tokenizer``; ``special`` maps names such as "eos_token" to their text. ``twins``: ids
    that no text leads to, and for each the one whose text it has.
    """

    def __init__(
        self,
        raw: Any,
        *,
        special: Mapping[str, str] | None = None,
        chat_template: str | Mapping[str, str] | None = None,
        begins_chats: bool | None = None,
        twins: Mapping[int, int] | None = None,
    ) -> None:
        """``chat_template``: one text, or several by name. ``begins_chats``: whether prompts of chats begin with bos;
        None: as every other text does."""
        raw.no_truncation()  # how long a file says that texts were in training cuts no prompt
        raw.no_padding()
        self.raw = raw
        self.special: dict[str, str] = dict(special or {})
        named = {"default": chat_template} if isinstance(chat_template, str) else chat_template
        self.chat_templates: dict[str, str] = dict(named or {})
        self.twins: dict[int, int] = dict(twins or {})
        self._begins_chats = begins_chats
        self._compiled: dict[str, ChatTemplate] = {}
        self._told: set[str] = set()

    @property
    def chat_template(self) -> str | None:
        """The chat template without a name; None where the checkpoint has none, or only others (``chat_templates``)."""
        return self.chat_templates.get("default")

    @chat_template.setter
    def chat_template(self, text: str | None) -> None:
        self.chat_templates = {} if text is None else {"default": text}

    def template(self, chat_template: str | None = None, tools: object = None) -> ChatTemplate:
        """The chat template that is meant: by its name or as a text; "tool_use" for ``tools``, even none; "default".

        Raises ``kv.errors.NotSupportedError`` where there is none, ``kv.errors.ArgumentError`` naming those that there
        are.
        """
        from .chat_template import ChatTemplate
        from .template_choice import chosen

        if chat_template is not None:
            utf8_text(chat_template, "tokenizer", "chat_template")
        text = chosen(self.chat_templates, chat_template, tools is not None)
        if text not in self._compiled:
            while len(self._compiled) >= _MOST_COMPILED:
                self._compiled.pop(next(iter(self._compiled)), None)
            self._compiled[text] = ChatTemplate(text)
        return self._compiled[text]

    @property
    def vocab_size(self) -> int:
        """Ids run from 0 to this, special and added tokens included."""
        return int(self.raw.get_vocab_size(with_added_tokens=True))

    @cached_property
    def special_tokens(self) -> SpecialTokens:
        """Tokens that end turns and texts, call tools, and the like, and how they are told from letters."""
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
            own = ids_of(self.raw, checked)
        return self._with_ends(own, parsed=special_tokens == "parse") if adding else own

    @cached_property
    def ends(self) -> tuple[list[int], list[int]]:
        """The token ids that the tokenizer puts before and after every text."""
        whole = self.raw.encode("a", add_special_tokens=True)
        own = self.raw.encode("a", add_special_tokens=False).ids
        ids, added = whole.ids, whole.special_tokens_mask
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
        return self.token_bytes.decode(ids, skip)

    def token_id(self, token: str) -> int | None:
        """The id of one exact token, or None."""
        found = self.raw.token_to_id(utf8_text(token, "tokenizer.token_id", "token"))
        return None if found is None else int(found)

    def special_id(self, text: str) -> int | None:
        """The id of the special token ``text``, which decoding may skip; None where it is none."""
        found = self.token_id(text)
        added = {} if found is None else self.raw.get_added_tokens_decoder()
        return found if found in added and added[found].special else None

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The bytes of single tokens."""
        return TokenBytes(self.raw, self.twins)

    def stream(self, skip_special_tokens: bool = True, begins: bool = True) -> Detokenizer:
        """A new incremental decoder: feed tokens, get text. ``begins``: as of a text of its own, whose first space may
        be the tokenizer's; otherwise as of what goes on behind another text."""
        skip = flag(skip_special_tokens, "tokenizer.stream", "skip_special_tokens")
        return Detokenizer(self, skip, flag(begins, "tokenizer.stream", "begins"))

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = ...,
        tokenize: Literal[True] = ...,
        special_tokens: TextReading = ...,
        chat_template: str | None = ...,
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
        chat_template: str | None = ...,
        **variables: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        special_tokens: TextReading = "letters",
        chat_template: str | None = None,
        **variables: Any,
    ) -> list[int] | str:
        """Messages ({"role", "content"}) laid out by the checkpoint's own template: token ids, or text.

        Token ids begin with bos once where the tokenizer puts it before texts, whether or not the template writes it.
        What stands in messages and variables is letters (prompts.py), also where it looks like a special token;
        ``special_tokens="parse"`` makes one of it. A text does not say which is which.

        ``chat_template``: another one, by its name among ``chat_templates`` or as a text. ``variables`` are passed to
        the template (``tools``, ``enable_thinking``, ...); what it takes no notice of (``tools``, ``documents``, tool
        calls, messages of a role) is told once, as a ``kv.errors.IgnoredWarning``. Content and arguments of tool calls
        are passed in the form that the template reads (template_messages.py). Raises ``kv.errors.NotSupportedError``
        when the checkpoint has no template and ``kv.errors.ArgumentError`` when the template refuses the messages,
        fails, takes more work than a template needs (chat_template.py), or writes a turn without its content
        (template_check.py).
        """
        wanted, asked = flag(tokenize, "tokenizer", "tokenize"), text_reading(special_tokens, "tokenizer")
        reading = asked if wanted else "parse"
        prompt = self.rendered(messages, add_generation_prompt, reading, variables, chat_template)
        return self.ids_of(prompt) if wanted else prompt.text

    def rendered(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = False,
        special_tokens: TextReading = "letters",
        variables: Message | None = None,
        chat_template: str | None = None,
    ) -> Rendered:
        """The prompt of these messages as text that knows its special tokens, for :meth:`ids_of`; arguments and errors
        are those of :meth:`apply_chat_template`."""
        flag(add_generation_prompt, "tokenizer", "add_generation_prompt")
        sequence: object = messages
        if not isinstance(sequence, Sequence) or isinstance(sequence, (str, bytes, range)):
            raise refusal(messages, "tokenizer", "messages", "a sequence of messages")
        template = self.template(chat_template, (variables or {}).get("tools"))
        if variables and "messages" in variables:
            raise ArgumentError("[tokenizer] variables: got one named messages, allowed other names")
        given = {**template.variables(variables or {}), "messages": template.prepared(messages)}
        own = {"tools": None, "documents": None, **self.special, "add_generation_prompt": add_generation_prompt}
        own = {name: value for name, value in own.items() if name not in given}
        values = {**own, **given}
        self._tell_ignored(template, values)
        if special_tokens == "parse":
            prompt = Rendered(template.render(values))
        else:
            prompt = rendered(template.render, given, own, self.special_tokens, template.source)
        self._tell_left_out(template.left_out(values, prompt.text))
        return prompt

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
            if variables[name] and name not in template.names:
                self._tell(f"{name}: this checkpoint's chat template takes no notice of them", 5)

    def _tell_left_out(self, names: set[str]) -> None:
        for name in sorted(names):
            what = "tool_calls" if name == "tool_calls" else f"messages: of the role {name[:40]!r}"
            self._tell(f"{what}: this checkpoint's chat template takes no notice of them", 5)

    def _tell(self, text: str, level: int) -> None:
        """Once."""
        if text not in self._told:
            self._told.add(text)
            tell = _teller.get()
            if tell is not None:
                tell(text)
            else:
                warnings.warn(f"[tokenizer] {text}", IgnoredWarning, stacklevel=level)

    def __repr__(self) -> str:
        templates = ", ".join(self.chat_templates) or "none"
        ends = ", ".join(
            f"{name}={text!r}" for name, text in sorted(self.special.items()) if name[:3] in ("bos", "eos")
        )
        return f"<kvtrie.Tokenizer {self.vocab_size} tokens, {ends or 'no bos or eos'}, chat templates: {templates}>"

    @classmethod
    def load(cls, folder: Path) -> Tokenizer | None:
        """The tokenizer of a checkpoint folder, or None if it has no tokenizer.json."""
        from .tokenizer_files import read_folder

        parts = read_folder(folder)
        if parts is None:
            return None
        from .template_choice import in_folder

        templates = in_folder(folder, parts.settings)
        return cls(parts.raw, special=parts.special, chat_template=templates, begins_chats=parts.begins_chats)


def of_another_form(folder: Path) -> Path | None:
    """A tokenizer's file that is not read, where there is no ``tokenizer.json``."""
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model")
    found = next((folder / name for name in (*names, "spiece.model") if (folder / name).exists()), None)
    return None if found is None or found.name == "tokenizer.json" else found


class Detokenizer(Whole):
    """Turns a stream of tokens into pieces of text that never split a character.

    What may still become a whole character is held back, three bytes at most; bytes that are none are U+FFFD at once.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True, begins: bool = True) -> None:
        table = tokenizer.token_bytes
        skip = table.special if skip_special_tokens else frozenset()
        self._stream = ByteStream(table, skip, begins) if table.add_up else NeighbourStream(table, skip, begins)

    def feed(self, token: int) -> str:
        """The text that became complete with ``token``; "" while a character is unfinished."""
        return self._stream.feed(_ids((token,), "tokenizer.stream")[0])

    def finish(self) -> str:
        """The text that is still held back, with U+FFFD where bytes are missing."""
        return self._stream.finish()


_ARGUMENTS = frozenset(inspect.signature(Tokenizer.apply_chat_template).parameters) - {"variables"} | {"tools"}


def template_variables(
    given: Mapping[str, object], where: str, name: str, allowed: Sequence[str] = ("tools",)
) -> Message:
    """Variables for a chat template that a caller of ``where`` gave as ``name``.

    Raises ``kv.errors.ArgumentError`` naming one that is an argument of :meth:`Tokenizer.apply_chat_template` and not
    among ``allowed``, so that a variable never takes the place of an argument.
    """
    for key in given:
        if not isinstance(key, str):
            raise refusal(key, where, name, "names of variables")
        if key in _ARGUMENTS and key not in allowed:
            raise ArgumentError(
                f"[{where}] {name}: got {key[:40]!r}, allowed variables: this is an argument of its own"
            )
    return dict(given)
