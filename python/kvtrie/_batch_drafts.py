"""The drafts of a step that several answers share: how many each has, and which of them are right.

    answer         0              1    2 (a prompt)
    rows       last d d d      last d    p p p p         d: drafts, the rows of one answer in order
    wanted       *  * * *        *  *          *         rows whose logits are read: 1 + drafts of each
    right        2                0                      each by its own sampler; in one launch what needs no host

All that were right are recorded in one call, ``step.accept``; so an answer never has the tokens of a step that was not
finished. Who is beside it decides how many drafts an answer has, never which token comes.

Threads: that of the batch. Units: rows, tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol, cast

import numpy as np

from ._checked import Checked, Checking
from ._core import Step, Tensor
from ._decoding import Decoding
from ._drafting import Costs, Drafting
from ._prediction_head import HeadDrafter
from ._protocols import Logits, StepModel
from ._step_rows import bounds_of
from .draws import Draw, draw

__all__ = ["Drafts", "accept", "find_drafts", "logits_of", "rows_of", "seeing"]

Drafts = Mapping[Decoding, Sequence[int]]  # of those that have some
Fail = Callable[[Decoding, BaseException], None]  # ends one answer alone, or raises


class _AnyRowsModel(Protocol):
    def __call__(self, step: Step, all_rows: bool = ..., rows: Sequence[int] | None = ...) -> Logits: ...


def find_drafts(answers: Sequence[Decoding], rows: int, costs: Costs, fail: Fail) -> Drafts:
    """Drafts for the next step of ``answers``, which has so many ``rows`` without them. ``fail`` is called for each
    answer whose drafter raises."""
    asked = [(each, each.drafting, _limit(each)) for each in answers]
    asking = [(each, drafting, limit) for each, drafting, limit in asked if drafting is not None and limit > 0]
    decoding = sum(not each.in_prompt for each in answers)
    if not asking:
        return {}
    chances = [drafting.chance for _, drafting, _ in asking]
    prices = [drafting.price for _, drafting, _ in asking]
    counts = costs.shares(chances, [limit for *_, limit in asking], rows, decoding, prices)
    before = _heads_together([(each, drafting, count) for (each, drafting, _), count in zip(asking, counts)])
    found = [_found(each, drafting, count, before, fail) for (each, drafting, _), count in zip(asking, counts)]
    kept = costs.shares(chances, [len(drafts) for drafts in found], rows, decoding) if any(found) else counts
    return {each: drafts[:count] for (each, *_), drafts, count in zip(asking, found, kept) if drafts[:count]}


def _limit(each: Decoding) -> int:
    most = each.most_drafts
    return each.drafting.limit(most) if each.drafting is not None and most > 0 else 0


def _heads_together(asked: Sequence[tuple[Decoding, Drafting, int]]) -> dict[Decoding, float]:
    """Has a prediction head that several answers ask first write for all of them; of each, the seconds of its share."""
    heads = [
        (each, drafting.first_head, count)
        for each, drafting, count in asked
        if count > 0 and drafting.first_head is not None and each.session is not None
    ]
    if len(heads) < 2:
        return {}
    began = time.perf_counter()
    HeadDrafter.write_together([(head, each.live, count) for each, head, count in heads if head is not None])
    seconds, total = time.perf_counter() - began, sum(count for *_, count in heads)
    return {each: seconds * count / total for each, _, count in heads}


def _found(each: Decoding, drafting: Drafting, count: int, before: Mapping[Decoding, float], fail: Fail) -> list[int]:
    try:
        return drafting.find(each.live, count, before.get(each, 0.0))
    except BaseException as error:
        fail(each, error)
        return []


class _HiddenModel(Protocol):
    def __call__(
        self, step: Step, all_rows: bool = ..., rows: Sequence[int] | None = ..., *, hidden: bool
    ) -> tuple[Logits, Tensor]: ...


def seeing(model: StepModel, answers: Sequence[Decoding], failed: list[tuple[Decoding, BaseException]]) -> StepModel:
    """``model``, whose hidden states the drafters of ``answers`` see that read them. What one of them raises goes to
    ``failed``."""
    watching = [(at, each) for at, each in enumerate(answers) if each.drafting is not None and each.drafting.watches]
    if not watching:
        return model

    def computed(step: Step, all_rows: bool = False, rows: Sequence[int] | None = None) -> Logits:
        logits, hidden = cast(_HiddenModel, model)(step, all_rows, rows, hidden=True)
        bounds, tokens, positions = bounds_of(step, len(answers)), np.asarray(step.tokens), np.asarray(step.positions)
        for at, each in watching:
            assert each.drafting is not None
            own = slice(bounds[at], bounds[at + 1])
            if own.start == own.stop:
                continue
            try:
                each.drafting.see(each.live, int(positions[own.start]), tokens[own], hidden[own.start : own.stop])
            except Exception as error:
                failed.append((each, error))
        return logits

    return cast(StepModel, computed)


class _Rows(NamedTuple):
    """``begins`` [answers + 1]: of the wanted rows, the first one of each answer. ``numbers``: theirs in the step."""

    begins: Sequence[int]
    numbers: Sequence[int]


def rows_of(step: Step) -> _Rows:
    """The rows whose logits decide which drafts are right, and what comes behind them."""
    wanted = np.asarray(step.drafted) + 1
    ends = bounds_of(step, len(wanted))[1:]
    numbers = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, wanted)])
    return _Rows([0, *np.cumsum(wanted).tolist()], numbers.tolist())


def logits_of(model: StepModel, step: Step, rows: _Rows) -> Logits:
    """[wanted rows, vocab]"""
    if len(rows.numbers) == len(step.tokens):
        return cast(_AnyRowsModel, model)(step, all_rows=True)
    return cast(_AnyRowsModel, model)(step, rows=rows.numbers)


class _Part(NamedTuple):
    """The part of one answer in the step: it goes on behind its rows, or has more of its prompt to compute."""

    each: Decoding
    drafts: Sequence[int]
    checking: Checking | None
    begin: int  # its first wanted row


def accept(
    step: Step, answers: Sequence[Decoding], drafts: Drafts, rows: _Rows, logits: Logits
) -> list[tuple[Decoding, BaseException]]:
    """Records the drafts that are right, which completes the step; what the choice behind them raised, of each."""
    counts = np.diff(bounds_of(step, len(answers))).tolist()
    parts = [
        _part(each, drafts.get(each, ()), count, begin) for each, count, begin in zip(answers, counts, rows.begins)
    ]
    drawn = _drawn(parts, logits)
    checked = [_checked(part, logits, drawn) for part in parts]
    right = [[] if found is None else found.right for found in checked]
    step.accept(
        [len(each) for each in right], [note for part, each in zip(parts, right) for note in part.each.notes(each)]
    )
    for part, found in zip(parts, checked):
        if found is not None:
            part.each.go_on_behind(found, [part.drafts], _slice(part, logits))
        elif part.checking is not None:
            part.each.offer(_slice(part, logits), part.each.live.recorded)
    return [(part.each, found.error) for part, found in zip(parts, checked) if found is not None and found.error]


def _part(each: Decoding, drafts: Sequence[int], rows: int, begin: int) -> _Part:
    ends = each.live.length + rows - len(drafts) == each.live.recorded
    return _Part(each, drafts, each.checking([drafts]) if ends else None, begin)


def _slice(part: _Part, logits: Logits) -> Logits:
    return logits[part.begin : part.begin + 1 + len(part.drafts)]


def _drawn(parts: Sequence[_Part], logits: Logits) -> list[int]:
    """A token for each row that is chosen on the device, in one launch and one read; of others anything."""
    rows, vocab_size = np.shape(logits)
    draws = [Draw()] * rows
    some = [part for part in parts if part.checking is not None and part.checking.on_device]
    for part in some:
        assert part.checking is not None
        draws[part.begin : part.begin + 1 + len(part.drafts)] = part.checking.draws(vocab_size)
    return draw(logits, draws) if some else []


def _checked(part: _Part, logits: Logits, drawn: Sequence[int]) -> Checked | None:
    """None: there is no token to choose, or it is one that is chosen later, by the host, without drafts."""
    if part.checking is None or not (part.drafts or part.checking.on_device):
        return None
    end = part.begin + 1 + len(part.drafts)
    return part.checking.by(_slice(part, logits), drawn[part.begin : end] if part.checking.on_device else None)
