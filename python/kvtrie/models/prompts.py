"""Conversations to prompts: whose words are whose in what a chat template made of them.

Concept. What a template writes as a special token is one. What users, tools and documents say is letters: a message
with ``<|im_end|>`` in it ends no turn, and a tool's description begins none. But a template gives back one text, in
which the two look alike. So it is run again on the same messages in disguise, and whatever of its second text is in
disguise is theirs:

    said        <|im_start|>user   a <|im_end|> b  <|im_end|>
    disguised   <|im_start|>user   a ?!im_end!# b  <|im_end|>       ? ! # : private-use characters
                ^^^^^^^^^^^^                        ^^^^^^^^^^       the template's own

The two texts have to agree but for the disguise. A template may look at what it is given (``"</think>" in content``),
and then another disguise is tried:

1. all letters of special tokens, where the template has pieces of one to put words between (``"<|" + x + "|>"``);
2. the signs that special tokens are written with (``<``, ``|``, ...), wherever they stand: then it shows, too, where a
   template or two texts side by side make a special token out of pieces;
3. the same, but for what the template itself looks for;
4. only special tokens, and what may be the beginning or the end of one where a text begins or ends: a character is put
   into them, which also outlasts a template that escapes what it is given.

Where none agrees, messages with the letters of a special token are refused: nothing is guessed.

Roles that are plain words count as the template's, as some make a special token of them: ``<|user|>``. So does what
this library itself sampled (:class:`OwnText`).

Threads: any.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from .._arguments import converting, refusal
from ..errors import ArgumentError
from .special_tokens import Mark, SpecialTokens

Render = Callable[[Mapping[str, object]], str]
Change = Callable[[str], str]

_ROLE = re.compile(r"[A-Za-z0-9_]*")
_PLAIN = frozenset("_-.,:\"'\\$")  # characters of special tokens that say nothing, or that JSON escapes
_PRIVATE = range(0xE000, 0xF900)  # of the basic plane, so that JSON writes each in one piece
_SOME = re.compile("[\ue000-\uf8ff]+")
_ESCAPED = re.compile(r"\\u([ef][0-9a-f]{3})")


class OwnText(str):
    """A text that the model wrote. ``spans``: where it has special tokens, from and to which character."""

    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str, spans: Sequence[tuple[int, int]]) -> OwnText:
        made = cls(text)
        made.spans = tuple(spans)
        return made


class Rendered(NamedTuple):
    """A prompt's text. ``marks``: its special tokens, in order; None for whatever a tokenizer finds in it.

    ``behind``: it is the rest of a text, after a special token or a word.
    """

    text: str
    marks: tuple[Mark, ...] | None = None
    behind: bool = False

    def rest(self, start: int) -> Rendered:
        """Without its first characters."""
        marks = self.marks
        if marks is not None:
            marks = tuple(mark.moved(-start) for mark in marks if mark.start >= start)
        return Rendered(self.text[start:], marks, behind=start > 0)

    def with_words(self, words: str, special: SpecialTokens) -> Rendered:
        """With words behind it that somebody said."""
        marks = self.marks
        if marks is not None:
            own = words.spans if isinstance(words, OwnText) else ()
            found = (mark for mark in special.find(words) if any(a <= mark.start and mark.end <= b for a, b in own))
            marks = (*marks, *(mark.moved(len(self.text)) for mark in found))
        return self._replace(text=self.text + words, marks=marks)


def rendered(
    render: Render, given: Mapping[str, object], own: Mapping[str, object], special: SpecialTokens, template: str
) -> Rendered:
    """The text that ``render`` makes of the messages and variables that are ``given``, and of the tokenizer's ``own``.

    ``template``: its source. Raises what ``render`` does, and ``kv.errors.ArgumentError`` for the letters of a special
    token that the template will not take for text.
    """
    for _ in range(2):  # a template may say the time
        text = render({**own, **given})
        marks = special.find(text)
        tokens = {special.texts[mark.token] for mark in marks}
        if not tokens:
            return Rendered(text, marks)
        with converting(given, "tokenizer", "messages", "texts, numbers, lists and mappings"):
            strings = list(_strings(given))
            _refuse_others(given, [*tokens])
        words = [*_literals(template), *map(str, own.values())]
        disguises = _Disguises(tokens, text, strings, words)
        if not disguises.needed:
            return Rendered(text, marks)
        for change, of_keys in disguises.all():
            shown = _tried(render, {**own, **{key: _changed(each, change, of_keys) for key, each in given.items()}})
            theirs = disguises.lifted(shown, text, special)
            if theirs is not None:
                return Rendered(text, theirs)
    if disguises.harmless:
        return Rendered(text, marks)
    raise ArgumentError(
        f"[tokenizer] messages: got the letters of a special token ({', '.join(sorted(tokens))}) that the chat "
        "template looks for, allowed other letters, or special_tokens='parse'"
    )


def _tried(render: Render, values: Mapping[str, object]) -> str | None:
    try:
        return render(values)
    except ArgumentError:
        return None


class _Disguises:
    """``tokens``: the special tokens that the rendered ``text`` has. ``strings``: all that is not the template's;
    ``words``: all that is."""

    def __init__(self, tokens: set[str], text: str, strings: Sequence[str], words: Sequence[str]) -> None:
        self._tokens, self._strings, self._words = tokens, strings, words
        self._whole = "|".join(map(re.escape, sorted(tokens, key=len, reverse=True)))
        self._letters = _either_case({each for token in tokens for each in token if not each.isspace()} - _PLAIN)
        self._signs = {each for each in self._letters if not each.isalnum()}
        self._heads = {token[:at] for token in tokens for at in range(1, len(token))}
        self._tails = {token[at:] for token in tokens for at in range(1, len(token))}
        heads, tails = tuple(self._heads), tuple(self._tails)
        self._in_pieces = any(each.endswith(heads) or each.startswith(tails) for each in words)
        signs = f"|[{''.join(map(re.escape, sorted(self._signs)))}]" if self._signs else ""
        suspect = re.compile(f"(?:{self._whole}){signs}")
        self.needed = self._in_pieces or any(map(suspect.search, strings))
        if self.needed:
            self._choose(_either_case({each for token in tokens for each in token}), text)

    def _choose(self, letters: set[str], text: str) -> None:
        """Private-use characters for the letters, and one more, that nothing has, and no JSON in the text."""
        used = {
            letter for each in (text, *self._strings) if not each.isascii() for letter in "".join(_SOME.findall(each))
        }
        used.update(map(_character, _ESCAPED.findall(text)))
        free = list(itertools.islice((chr(each) for each in _PRIVATE if chr(each) not in used), len(letters) + 1))
        if len(free) <= len(letters):
            raise ArgumentError("[tokenizer] messages: got all private-use characters, allowed some of them")
        self._nonce = free.pop()
        self._hidden = str.maketrans(dict(zip(sorted(letters), free)))
        self._shown = str.maketrans(dict(zip(free, sorted(letters))))

    @property
    def harmless(self) -> bool:
        """Whether no text has a special token, or may begin or end within one."""
        return all(self._with_nonces(each) == each for each in self._strings)

    def all(self) -> Iterator[tuple[Change, Change]]:
        """One after the other, of texts and of keys. Letters are hidden, too, where the template has pieces of special
        tokens to put them between."""
        signs = self._hiding(self._signs)
        kept = [each for each in self._words if not self._is_piece(each)]
        if self._in_pieces:
            yield self._hiding(self._letters), signs
            yield self._hiding(self._letters, [each for each in kept if len(each) > 1]), signs
        yield signs, signs
        yield self._hiding(self._signs, [each for each in kept if self._signs.intersection(each)]), signs
        yield self._with_nonces, self._with_nonces

    def _is_piece(self, word: str) -> bool:
        """Whether it has a special token in it, or is part of one."""
        return any(token in word or word in token for token in self._tokens)

    def lifted(self, shown: str | None, text: str, special: SpecialTokens) -> tuple[Mark, ...] | None:
        """The special tokens of ``text`` that are not in disguise in ``shown``; None where the two differ otherwise."""
        if shown is None:
            return None
        shown = _ESCAPED.sub(self._unescaped, shown)
        lifted = shown.replace(self._nonce, "")
        if self._in_pieces:
            lifted = lifted.translate(self._shown)
        else:
            lifted = _SOME.sub(lambda found: found[0].translate(self._shown), lifted)
        if not _same(lifted, text):
            return None
        marks = special.find(shown)
        places = [at for at, each in enumerate(shown) if each == self._nonce] if self._nonce in shown else []
        return tuple(mark.moved(-bisect(places, mark.start)) for mark in marks)

    def _unescaped(self, found: re.Match[str]) -> str:
        letter = _character(found[1])
        return letter if letter == self._nonce or ord(letter) in self._shown else found[0]

    def _hiding(self, letters: set[str], kept: Sequence[str] = ()) -> Change:
        """With special tokens and all of these letters hidden, but in what is kept."""
        if letters is self._letters and not kept:  # most of a text: quicker in one piece
            table = {ord(letter): self._hidden[ord(letter)] for letter in letters}
            return lambda said: said.translate(table)
        either = "|".join(map(re.escape, sorted(kept, key=len, reverse=True)))
        letter = f"|[{''.join(map(re.escape, sorted(letters)))}]" if letters else ""
        pattern = re.compile(f"(?:{self._whole})" + (f"|(?P<kept>{either})" if kept else "") + letter)
        hidden = self._hidden

        def change(found: re.Match[str]) -> str:
            return found[0] if found.lastgroup == "kept" else found[0].translate(hidden)

        return lambda said: pattern.sub(change, said)

    def _with_nonces(self, said: str) -> str:
        """With the nonce in whatever may be a special token, in any case of its letters, or part of one at an end."""
        said = re.sub(
            self._whole, lambda found: f"{found[0][:1]}{self._nonce}{found[0][1:]}", said, flags=re.IGNORECASE
        )
        begin, end = len(said) - len(said.lstrip()), len(said.rstrip())
        if begin < end and said[:end].endswith(tuple(self._heads)):
            said = f"{said[:end]}{self._nonce}{said[end:]}"
        if begin < end and said[begin:].startswith(tuple(self._tails)):
            said = f"{said[:begin]}{self._nonce}{said[begin:]}"
        return said


def _same(shown: str, text: str) -> bool:
    """But for capitals: a template may change those, and not know them in disguise."""
    return shown == text or (len(shown) == len(text) and shown.lower() == text.lower())


def _either_case(letters: set[str]) -> set[str]:
    return {case for each in letters for case in (each, each.lower(), each.upper()) if len(case) == 1}


def _character(code: str) -> str:
    return chr(int(code, 16))


# ---- the texts in messages -------------------------------------------------------------------------------------------


def _is_role(key: object, value: object) -> bool:
    return key == "role" and isinstance(value, str) and _ROLE.fullmatch(value) is not None


def _strings(value: object) -> Iterator[str]:
    """All that somebody may have written; of what the model wrote, what lies between its special tokens."""
    if isinstance(value, OwnText):
        yield from _between(value)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if not _is_role(key, each):
                yield from _strings(key)
                yield from _strings(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _strings(each)


def _refuse_others(value: object, tokens: Sequence[str]) -> None:
    """Raises for a value of another type that may have a special token in its text, which no disguise can hide."""
    if isinstance(value, Mapping):
        for each in itertools.chain(value.keys(), value.values()):
            _refuse_others(each, tokens)
    elif isinstance(value, (list, tuple)):
        for each in value:
            _refuse_others(each, tokens)
    elif not isinstance(value, (str, int, float, type(None))) and any(token in f"{value}" for token in tokens):
        raise refusal(
            value, "tokenizer", "messages", "texts, numbers, lists and mappings where there is a special token"
        )


def _between(text: OwnText) -> Iterator[str]:
    at = 0
    for start, end in text.spans:
        yield text[at:start]
        at = end
    yield text[at:]


def _changed(value: object, change: Change, of_keys: Change) -> object:
    """The same in disguise."""
    if isinstance(value, OwnText):
        return _changed_between(value, change)
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            _changed(key, of_keys, of_keys): each if _is_role(key, each) else _changed(each, change, of_keys)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [_changed(each, change, of_keys) for each in value]
    if isinstance(value, tuple):
        return tuple(_changed(each, change, of_keys) for each in value)
    return value


def _changed_between(text: OwnText, change: Change) -> str:
    pieces = list(_between(text))
    marks = [*(text[start:end] for start, end in text.spans), ""]
    return "".join(change(piece) + mark for piece, mark in zip(pieces, marks))


@lru_cache(maxsize=16)
def _literals(template: str) -> tuple[str, ...]:
    """Text that a chat template writes, and the strings in it."""
    from jinja2 import Environment, TemplateError

    try:
        found = [(kind, text) for _, kind, text in Environment().lex(template)]
    except TemplateError:
        return ()
    said = [text[1:-1] if kind == "string" else text for kind, text in found if kind in ("string", "data")]
    return tuple(dict.fromkeys(text for text in said if text))
