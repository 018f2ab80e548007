"""Drafters: what may come next, at little cost, so that one step checks several tokens instead of making one.

    prompt       what followed the last few tokens earlier in the same conversation: edits, quotes, repeated calls
    tree         what others of the same namespace went on with behind the very same tokens: an answer asked for again
    suffix       what followed the same last tokens anywhere in the namespace: the same file, quote or call again
    callable     one of the caller's own: (tokens, most) -> tokens
    mtp          what the model's own prediction head says (_prediction_head.py)
    DraftModel   what a small model would write (_draft_model.py)
    DraftTree    several ways to go on, of "tree", "suffix" or a callable (_draft_tree.py)

A draft decides how fast an answer comes, never what it says: the model checks each token, and the first that it would
not have chosen ends the draft (docs/drafts.md). A drafter sees its own session, and so never another namespace.

Threads: a drafter belongs to one answer. Lengths are counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, Union, cast

import numpy as np
import numpy.typing as npt

from . import _core
from ._arguments import converting, listed, refusal, shown
from ._draft_model import DraftModel
from ._draft_tree import DraftTree
from ._prediction_head import HeadModel, PredictionHead
from ._protocols import StepModel
from .errors import ArgumentError

__all__ = ["Draft", "Drafter", "PromptLookup", "close_drafter", "drafters", "watched"]

Tokens = npt.NDArray[np.int32]
DraftFunction = Callable[[Tokens, int], Iterable[int]]
DraftSource = Union[str, DraftFunction, DraftModel, DraftTree, PredictionHead]
Draft = Union[None, DraftSource, Sequence[DraftSource]]
NAMES = ("prompt", "tree", "suffix", "mtp")
_CANDIDATES = 8  # earlier places that are compared, the latest ones


class Drafter(Protocol):
    """At most ``most`` tokens that may follow all that ``session`` has recorded; none where it knows nothing.

    One that holds something has a ``close``, too: :func:`close_drafter`; one that reads the model's hidden states has a
    ``watch``: :func:`watched`; one that knows several ways is a ``DraftTree``.
    """

    def __call__(self, session: _core.Session, most: int) -> Sequence[int]: ...


class PromptLookup:
    """Looks for the longest earlier place of a text's last tokens, and gives what followed there.

    Source: prompt lookup decoding (Saxena 2023). ``least``: tokens that have to match. Places are found by the last
    ``least`` tokens and compared token by token; of equally long matches the latest counts. What runs into the end of
    the text goes on with itself, so a period is continued. Cost: O(1) for each token of the text, once; memory: one
    entry a token.
    """

    def __init__(self, least: int = 3) -> None:
        if not isinstance(least, int) or isinstance(least, bool) or least < 1:
            raise ArgumentError(f"[draft] least: got {shown(least)}, allowed 1 or more")
        self._least = least
        self._text: list[int] = []
        self._seen = np.empty(0, np.int32)  # the same
        self._places: dict[tuple[int, ...], list[int]] = {}  # behind those tokens

    def __call__(self, tokens: Tokens, most: int) -> list[int]:
        """``tokens``: the whole text, int32."""
        self._read(tokens)
        text, place = self._text, self._best_place()
        if place is None:
            return []
        found: list[int] = []
        for at in range(place, place + most):
            token = text[at] if at < len(text) else found[at - len(text)]
            if token < 0:  # of an image: nobody can write it
                break
            found.append(token)
        return found

    def _read(self, tokens: Tokens) -> None:
        count = len(self._text)
        if not np.array_equal(tokens[:count], self._seen):
            self._text, self._places, count = [], {}, 0
        self._seen = np.array(tokens, np.int32)
        self._text += tokens[count:].tolist()
        for end in range(max(count, self._least - 1) + 1, len(self._text) + 1):
            places = self._places.setdefault(tuple(self._text[end - self._least : end]), [])
            places.append(end)
            del places[: -_CANDIDATES - 1]  # the last one is the text's own end for now

    def _best_place(self) -> int | None:
        text, end = self._text, len(self._text)
        best, longest = None, 0
        for place in self._places.get(tuple(text[end - self._least :]), ()):
            if place == end:
                continue
            length = self._least
            while length < place and length < 64 and text[place - 1 - length] == text[end - 1 - length]:
                length += 1
            if length >= longest:
                best, longest = place, length
        return best


def drafters(draft: Draft, model: StepModel) -> list[Drafter]:
    """The drafters of one answer of ``model`` that ``draft`` names, each asked in turn until one knows something. None:
    none.

    ``ArgumentError`` or ``ArgumentTypeError`` for what is neither a name, nor a callable, nor a ``DraftModel`` with the
    model's tokens, nor its ``PredictionHead``, nor a list of them.
    """
    if draft is None:
        return []
    allowed = (
        '"prompt", "tree", "suffix", "mtp", a callable (tokens, most) -> tokens, a DraftModel, a DraftTree, or a list'
    )
    if isinstance(draft, (str, DraftModel, PredictionHead)) or callable(draft):
        return [_drafter(draft, model, allowed)]
    each = listed(draft, "generate", "draft", allowed)
    return [_drafter(one, model, allowed) for one in each]


def close_drafter(drafter: Drafter) -> None:
    """Gives back what ``drafter`` holds; it drafts nothing more. May be called again, from any thread."""
    close = getattr(drafter, "close", None)
    if close is not None:
        close()


def watched(model: StepModel, each: Iterable[Drafter]) -> StepModel:
    """``model``, whose steps those of the drafters see that read hidden states."""
    for drafter in each:
        watch = getattr(drafter, "watch", None)
        if watch is not None:
            model = watch(model)
    return model


def _drafter(one: object, model: StepModel, allowed: str) -> Drafter:
    if isinstance(one, (DraftModel, PredictionHead)):
        return one.drafter(model)
    if isinstance(one, DraftTree):
        return one
    if isinstance(one, str):
        if one == "mtp":
            return _head_of(model)
        if one not in NAMES:
            raise ArgumentError(f"[generate] draft: got {shown(one)}, allowed {allowed}")
        return _of_text(PromptLookup()) if one == "prompt" else _tree if one == "tree" else _suffix
    if not callable(one):
        raise refusal(one, "generate", "draft", allowed)
    return _of_text(one)


def _head_of(model: StepModel) -> Drafter:
    if getattr(model, "mtp", None) is None:
        raise ArgumentError(
            '[generate] draft: got "mtp" for a model without its prediction head, allowed one that load(mtp=True) gave'
        )
    return PredictionHead(cast(HeadModel, model)).drafter(model)


def _tree(session: _core.Session, most: int) -> list[int]:
    found: list[int] = session.continuation(most).tolist()
    return found


def _suffix(session: _core.Session, most: int) -> list[int]:
    found: list[int] = session.continuation(most, suffix=True).tolist()
    return found


def _of_text(function: DraftFunction) -> Drafter:
    def propose(session: _core.Session, most: int) -> list[int]:
        given = function(session.tokens, most)
        with converting(given, "generate", "draft", "token ids"):
            tokens = np.asarray(list(given))
        if tokens.size and (tokens.ndim != 1 or tokens.dtype.kind not in "iu"):
            raise refusal(given, "generate", "draft", "a callable that gives token ids")
        found: list[int] = tokens.tolist()[:most]
        return found

    return propose
