"""Special tokens in a text: which parts of it are tokens of their own, and which only look like them.

Concept. A special token (a control token in a GGUF file) begins a turn, ends a text, or calls a tool. A tokenizer
finds it wherever its letters stand, whoever wrote them. So a prompt says where it means one: a *mark* is a part of
the text that stands for a special token, and the same letters anywhere else are letters.

The ``tokenizers`` library parses all special tokens of a text or none. So where a text has letters that it would parse,
a second tokenizer of the same model reads it: there, each special token is one private-use character that the text does
not have, and each mark is replaced by its own. Everything else, such as how text next to a mark is cut into words, is
the library's own doing, as it is for a text without such letters.

Added tokens that are not special, such as Qwen's ``<think>``, are text: they are found wherever they stand. White space
alone is never a mark, as every text has it.

Threads: any.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, Optional, cast

from .._whole import Whole
from ..errors import ArgumentError

if TYPE_CHECKING:
    import tokenizers
    from tokenizers import AddedToken, models

    Raw = tokenizers.Tokenizer

_PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # planes 15 and 16 are nobody's
_LEAST = 16  # characters of one set of stand-ins, so that there are few sets to choose from
_MOST_IN_A_PATTERN = 512
_LONG = 1 << 15  # characters of a text that takes tens of milliseconds
SPACE = "\u2581"  # SentencePiece's
_NO_WORD = "\ufdd0"  # a code point that is no character


def ids_of(raw: Raw, text: str) -> list[int]:
    """Token ids of a text as it stands.

    The library keeps the GIL while it reads one text, and lets go of it for several: a long one is given as a list.
    """
    if len(text) <= _LONG:
        return list(raw.encode(text, add_special_tokens=False).ids)
    return list(raw.encode_batch([text], add_special_tokens=False)[0].ids)


class Mark(NamedTuple):
    """Characters ``start`` to ``end`` of a text are the special token ``token``, with white space that it takes in."""

    start: int
    end: int
    token: int

    def moved(self, by: int) -> Mark:
        return Mark(self.start + by, self.end + by, self.token)


class SpecialTokens(Whole):
    """Those of one ``tokenizers.Tokenizer``, which nobody changes any more."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        self._added: dict[int, AddedToken] = dict(sorted(raw.get_added_tokens_decoder().items()))
        self.texts: dict[int, str] = {
            token: each.content for token, each in self._added.items() if each.special and each.content.strip()
        }
        """Their spelling, by id."""
        self._reader = lru_cache(maxsize=4)(self._make_reader)

    def __reduce__(self) -> tuple[type[SpecialTokens], tuple[Raw]]:
        return SpecialTokens, (self._raw,)

    def find(self, text: str) -> tuple[Mark, ...]:
        """All that the tokenizer would parse as special tokens."""
        if not self.texts:
            return ()
        if self._pattern is not None:
            ids = self._ids
            return tuple(Mark(*each.span(), ids[each[0]]) for each in self._pattern.finditer(text) if each[0] in ids)
        finder, known = self._finder
        found = finder.encode(text, add_special_tokens=False)
        return tuple(
            Mark(start, end, known[token]) for token, (start, end) in zip(found.ids, found.offsets) if token in known
        )

    def encode(self, text: str, marks: Sequence[Mark], *, behind: bool = False) -> list[int]:
        """Token ids of a text in which these are the special tokens, in order, and all others letters.

        ``behind``: it goes on after a special token, so it does not begin as a text does. Raises
        ``kv.errors.ArgumentError`` for letters that this tokenizer has as a special token only.
        """
        if not (behind and self._begins_otherwise) and tuple(marks) == self.find(text):
            ids = ids_of(self._raw, text)
            made = self._made_of_letters
            if not made or sum(map(made.__contains__, ids)) == sum(mark.token in made for mark in marks):
                return ids
        ids, forged = self._read(text, marks, behind, separate=self._is_unigram)
        if forged is not None and not self._is_unigram:
            ids, forged = self._read(text, marks, behind, separate=True)
        if forged is None:
            return ids
        raise ArgumentError(
            f"[tokenizer] special_tokens: got {self.texts[forged]!r} as letters, which this tokenizer has as a special "
            "token only, allowed 'parse' with this text, or one without it"
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {text: token for token, text in self.texts.items()}

    @cached_property
    def _made_of_letters(self) -> frozenset[int]:
        """Special tokens that are words of the model, too, so that letters alone may become one; not the one that all
        unknown letters become."""
        model = self._raw.model
        unknown = getattr(model, "unk_token", None)
        if self._is_unigram:
            number = json.loads(self._raw.to_str())["model"].get("unk_id")
            unknown = None if number is None else model.id_to_token(number)
        return frozenset(
            token for token, text in self.texts.items() if text != unknown and model.token_to_id(text) == token
        )

    @cached_property
    def _is_unigram(self) -> bool:
        """A word of such a model may be the unknown one, which is a special token."""
        return type(self._raw.model).__name__ == "Unigram"

    @cached_property
    def _begins_otherwise(self) -> bool:
        """Whether a text begins otherwise than what follows a special token in it."""
        cut = self._raw.pre_tokenizer
        return cut is not None and b'"first"' in cut.__getstate__()

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        """Finds them as the library does, and quicker: the longest of those that begin first. None where tokens are
        found in another way, or are too many."""
        plain = [each for each in self._added.values() if not each.normalized]
        if len(plain) > _MOST_IN_A_PATTERN or any(each.lstrip or each.rstrip or each.single_word for each in plain):
            return None
        if any(each.normalized and each.special for each in self._added.values()):
            return None
        texts = sorted((each.content for each in plain if each.content), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)))

    @cached_property
    def _finder(self) -> tuple[Raw, dict[int, int]]:
        """A tokenizer that only finds added tokens, and what its ids of special ones stand for."""
        import tokenizers
        from tokenizers import models

        finder = tokenizers.Tokenizer(models.WordLevel({_NO_WORD: 0}, unk_token=_NO_WORD))
        if self._raw.normalizer is not None and any(each.normalized for each in self._added.values()):
            finder.normalizer = self._raw.normalizer
        finder.add_tokens(list(self._added.values()))
        found = {finder.token_to_id(text): token for token, text in self.texts.items()}
        return finder, {ours: token for ours, token in found.items() if ours is not None}

    # ---- letters beside marks ----------------------------------------------------------------------------------------

    def _read(self, text: str, marks: Sequence[Mark], behind: bool, separate: bool) -> tuple[list[int], int | None]:
        """The ids, and a special token that the model itself made of letters, or None. ``separate``: the model is one
        that has no special tokens among its own."""
        reader = self._reader(self._free(text), separate)
        pieces, at = [reader.lead if behind else ""], 0
        for mark in marks:
            whole, letter = text[mark.start : mark.end], reader.letters[mark.token]
            same = whole.replace(self.texts[mark.token], letter)  # with the blanks that it takes in
            pieces += [text[at : mark.start], letter if same == whole else same]
            at = mark.end
        found = ids_of(reader.raw, "".join([*pieces, text[at:]]))[int(behind) :]
        made = self._made_of_letters
        forged = next((token for token in found if token in made and token not in reader.ids), None)
        return [reader.ids.get(token, token) for token in found], forged

    def _free(self, text: str) -> int:
        """A code point from which on there are as many as special tokens that the text does not have."""
        used = {ord(each) for each in set(text) if ord(each) >= _PRIVATE[0].start}
        count = max(len(self.texts) + 1, _LEAST)
        for plane in _PRIVATE:
            for start in range(plane.start, plane.stop - count, count):
                if not any(start <= each < start + count for each in used):
                    return start
        raise ArgumentError("[tokenizer] text: got private-use characters everywhere, allowed some of them")

    def _make_reader(self, start: int, separate: bool) -> _Reader:
        import tokenizers
        from tokenizers import AddedToken

        raw = tokenizers.Tokenizer(self._separate_model if separate else self._raw.model)
        if self._raw.normalizer is not None:
            raw.normalizer = self._raw.normalizer
        if self._raw.pre_tokenizer is not None:
            raw.pre_tokenizer = self._raw.pre_tokenizer
        letters = {token: chr(start + 1 + at) for at, token in enumerate(self.texts)}
        added = {
            token: _like(each, letters[token]) if token in letters else each for token, each in self._added.items()
        }
        lead = AddedToken(chr(start), special=True, normalized=False)
        gap = [AddedToken(f"{lead.content}{at}", special=True, normalized=False) for at in range(self._gap)]
        raw.add_tokens([*gap, *added.values(), lead])
        return _Reader(raw, letters, lead.content, {raw.token_to_id(each.content): t for t, each in added.items()})

    @cached_property
    def _gap(self) -> int:
        """Ids of the model that are as high as those of tokens that are added to it: none where no id is left out."""
        ids = self._raw.get_vocab(with_added_tokens=False).values()
        return max(ids, default=-1) + 1 - len(ids)

    @cached_property
    def _separate_model(self) -> models.Model:
        """The model under other names for special tokens, so that no letters make one."""
        import tokenizers

        whole = json.loads(self._raw.to_str())
        model, others = whole["model"], {text: f"\U0010ffff{token}" for token, text in self.texts.items()}
        if isinstance(model["vocab"], dict):
            model["vocab"] = {others.get(text, text): token for text, token in model["vocab"].items()}
        else:
            model["vocab"] = [[others.get(text, text), score] for text, score in model["vocab"]]
        if model.get("unk_token") in others:
            model["unk_token"] = others[model["unk_token"]]
        if "merges" in model:
            pairs = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
            model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & others.keys()]
        empty = {"version": "1.0", "added_tokens": [], "model": model}
        names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
        made = tokenizers.Tokenizer.from_str(json.dumps({**dict.fromkeys(names), **empty}))
        return cast("models.Model", made.model)


def _like(token: AddedToken, letter: str) -> AddedToken:
    """A stand-in for a token wherever its letter stands."""
    from tokenizers import AddedToken

    blanks = {"lstrip": token.lstrip, "rstrip": token.rstrip}
    return AddedToken(letter, special=True, normalized=token.normalized, **blanks)


class _Reader(NamedTuple):
    """``letters``: what stands in for each special token; ``lead`` for any in front. ``ids``: by its own ids of added
    tokens, those of the tokenizer."""

    raw: Raw
    letters: dict[int, str]
    lead: str
    ids: Mapping[Optional[int], int]
