"""Why no more of a prompt would be reused: the answer of ``PrefixCache.explain``, as data, text and a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Optional, TypedDict

import numpy as np
import numpy.typing as npt

from ._values import Reason
from ._whole import Whole

Decode = Callable[[list[int]], str]
Ints = npt.NDArray[np.int32]

_KNOWN = 1024  # tokens of the nearest branch that the core looks at
_AROUND = 12  # tokens of text that are shown on either side of a difference


class CacheReach(NamedTuple):
    """The states that one cache by itself could go on from.

    ``kind``: "full", "window", "chunk" or "states" (recurrent layers). ``layers``: the model's numbers. ``window``,
    ``chunk``: in tokens; 0 where there is none. ``deepest``: the deepest length of the prompt, up to ``matched``.
    ``kept``: of "states" the last lengths up to the match at which a restore point or a live session has one.
    """

    kind: str
    layers: tuple[int, ...]
    window: int
    chunk: int
    deepest: int
    kept: tuple[int, ...]

    @property
    def name(self) -> str:
        """For people: "window 512"."""
        sizes = {"window": f" {self.window}", "chunk": f" {self.chunk}"}
        return self.kind + sizes.get(self.kind, "")


class Rejoin(NamedTuple):
    """Where a prompt and the nearest branch agree again, counted from where they diverge.

    ``prompt``, ``known``: tokens that differ, on either side. ``tokens``: how many are the same after them; 0: none.
    """

    prompt: int
    known: int
    tokens: int


class ReachFields(TypedDict):
    """A ``CacheReach`` as the core gives it."""

    kind: str
    layers: list[int]
    window: int
    chunk: int
    deepest: int
    kept: list[int]


class Fields(TypedDict):
    """An ``Explanation`` as the core gives it."""

    matched: int
    reusable: int
    tier: str
    bytes_moved: int
    reason: Reason
    end: str
    branches: int
    known: Ints
    rejoin: tuple[int, int, int]
    caches: list[ReachFields]
    compute_seconds: Optional[float]
    load_seconds: Optional[float]


class Explanation(Whole):
    """Where a prompt leaves what is known, what each kind of state could go on from, and what would mend it.

    ``tokens``: int32, the prompt. ``namespace``: the only one that was looked at. ``matched``, ``reusable``, ``tier``,
    ``bytes_moved``, ``reason``: as in ``PrefixCache.plan``. ``end``: how the match ends: "differs" (other tokens are
    known there), "tree_ends" (nothing is known behind it), "whole_known" (all of the prompt is), or "unknown" (the
    namespace has nothing). ``branches``: how many continuations are known there. ``known``: int32, the tokens of the
    nearest one from there on, at most 1,024; empty unless ``end`` is "differs". ``rejoin``: where the two agree again.
    ``caches``: a ``CacheReach`` for each cache, those of attention first. ``compute_seconds``, ``load_seconds``: what
    is left to compute and what has to be loaded are measured to take; None until enough was measured.

    It is what was true when it was made; ``str()`` and a notebook show it, with text where ``decode`` was given.
    """

    def __init__(self, tokens: Ints, namespace: str, fields: Fields, decode: Optional[Decode] = None) -> None:
        self.tokens = tokens
        self.namespace = namespace
        self.matched: int = fields["matched"]
        self.reusable: int = fields["reusable"]
        self.tier: str = fields["tier"]
        self.bytes_moved: int = fields["bytes_moved"]
        self.reason: Reason = fields["reason"]
        self.end: str = fields["end"]
        self.branches: int = fields["branches"]
        self.known: Ints = fields["known"]
        self.rejoin: Rejoin = Rejoin(*fields["rejoin"])
        self.caches: list[CacheReach] = [
            CacheReach(
                each["kind"],
                tuple(each["layers"]),
                each["window"],
                each["chunk"],
                each["deepest"],
                tuple(each["kept"]),
            )
            for each in fields["caches"]
        ]
        self.compute_seconds: float | None = fields["compute_seconds"]
        self.load_seconds: float | None = fields["load_seconds"]
        self._decode = decode

    @property
    def computed(self) -> int:
        """Tokens of the prompt that would be computed."""
        return len(self.tokens) - self.reusable

    @property
    def before(self) -> Ints:
        """int32: the last tokens that the prompt and the tree have in common."""
        return self.tokens[max(0, self.matched - _AROUND) : self.matched]

    @property
    def instead(self) -> Ints:
        """int32: the prompt's own tokens from where it leaves the tree."""
        return self.tokens[self.matched :]

    def advice(self) -> list[str]:
        """Advice that would mend it, as sentences, the most useful one first; empty where there is nothing to mend."""
        return [*_advice_on_match(self), *_advice_on_state(self)]

    def text(self, decode: Optional[Decode] = None) -> str:
        """All of it in lines for people. ``decode`` turns token ids into text; without one ids are shown."""
        return "\n".join([*_head(self), *self.details(decode)])

    def details(self, decode: Optional[Decode] = None) -> list[str]:
        """The lines of ``text`` without the figures: where the prompt leaves the tree, what stops whom, advice."""
        return [*_difference(self, decode or self._decode), *_reaches(self), *_mend(self)]

    def to_svg(self, *, width: int = 960) -> str:
        """A picture: the prompt as a bar, below it how far each cache could go on. ``width`` in pixels, 640 or more."""
        from .viz.explanation import explanation_svg

        return explanation_svg(self, width=width)

    def _repr_html_(self) -> str:
        from .viz.explanation import explanation_html

        return explanation_html(self, self._decode)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return (
            f"<kvtrie.Explanation {self.reusable} of {len(self.tokens)} tokens reusable, {self.matched} matched, "
            f"{self.end}{', ' + self.reason.code if self.reason else ''}>"
        )


def shown_text(tokens: Sequence[int] | Ints, decode: Optional[Decode]) -> str:
    """Tokens as text in quotes, items of media by their size; ids where there is no ``decode``."""
    if decode is None:
        return " ".join(str(int(token)) for token in tokens)
    pieces: list[str] = []
    run: list[int] = []
    for token in [*map(int, tokens), -1]:
        if token >= 0:
            run.append(token)
            continue
        if run:
            pieces.append(decode(run))
            run = []
        if not pieces or pieces[-1] != "<media>":
            pieces.append("<media>")
    return repr("".join(pieces[:-1] if len(tokens) == 0 or int(tokens[-1]) >= 0 else pieces))


def _seconds(value: Optional[float]) -> str:
    return "" if value is None else f", about {value * 1e3:,.0f} ms" if value < 10 else f", about {value:,.1f} s"


def _head(found: Explanation) -> Iterator[str]:
    total = len(found.tokens)
    where = f" from the {found.tier}" if found.reusable else ""
    yield f"{found.matched:,} of {total:,} prompt tokens are known, {found.reusable:,} can be reused{where}"
    yield f"{found.computed:,} to compute{_seconds(found.compute_seconds)}"
    if found.bytes_moved:
        yield f"{found.bytes_moved:,} bytes to load{_seconds(found.load_seconds)}"
    if found.reason:
        yield f"not more, because of {found.reason}"


def _difference(found: Explanation, decode: Optional[Decode]) -> Iterator[str]:
    if found.end == "unknown":
        yield f"nothing is known in namespace {found.namespace!r}"
    elif found.end == "whole_known":
        yield "all of the prompt is known"
    elif found.end == "tree_ends":
        yield f"nothing is known behind token {found.matched:,}: the rest is new"
    else:
        nearest = "the one branch" if found.branches == 1 else f"the nearest of {found.branches:,} branches"
        yield f"it differs from {nearest} at token {found.matched:,}:"
        if len(found.before):
            yield f"  in common  ... {shown_text(found.before, decode)}"
        yield f"  the prompt     {shown_text(found.instead[:_AROUND], decode)} ..."
        yield f"  the tree       {shown_text(found.known[:_AROUND], decode)} ..."


def _reaches(found: Explanation) -> Iterator[str]:
    if all(cache.deepest >= found.matched for cache in found.caches):
        return
    yield "each kind of state by itself could go on from:"
    width = max(len(cache.name) for cache in found.caches)
    for cache in found.caches:
        kept = f", kept at {', '.join(f'{each:,}' for each in cache.kept)}" if cache.kept else ""
        none = ", none is kept" if cache.kind == "states" and not cache.kept else ""
        layers = f"layers {', '.join(map(str, cache.layers[:8]))}{', ...' if len(cache.layers) > 8 else ''}"
        yield f"  {cache.name:<{width}}  {cache.deepest:>7,}  {layers}{kept}{none}"


def _mend(found: Explanation) -> Iterator[str]:
    for sentence in found.advice():
        yield f"to reuse more: {sentence}"


def _advice_on_match(found: Explanation) -> Iterator[str]:
    if found.end != "differs" or found.rejoin.tokens == 0:
        return
    prompt, known, same = found.rejoin
    what = f"{prompt} of the prompt's tokens and {known} of the tree's" if prompt != known else f"{prompt} tokens"
    more = " or more" if known + same == _KNOWN else ""
    yield (
        f"only {what} differ there, the next {same:,}{more} are the same; put what changes (a date, a counter, an id) "
        "behind what does not"
    )


def _advice_on_state(found: Explanation) -> Iterator[str]:
    advice = {
        "no_state": (
            "keep a state nearer to where prompts diverge: session.checkpoint() there, a smaller checkpoint_every, or "
            "more slots; once this prompt is computed, one is kept at its match"
        ),
        "window_incomplete": (
            "let windows keep more cells: a larger window_capacity, or session.checkpoint() where prompts diverge"
        ),
        "no_room": "the rest is in a lower tier: a larger capacity, or fewer live sessions and pins",
        "recompute": "nothing is wrong: computing is measured to be faster than loading; load='always' loads it anyway",
        "atomic_span": "the match ends inside an image or a span that goes as one; it is reused whole or not at all",
    }
    if found.reason and found.reason.code in advice:
        yield advice[found.reason.code]
