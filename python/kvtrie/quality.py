"""The price of formats of weights and of cells in quality: one text, read by a model that is kept in several ways.

    found = kv.quality("model.gguf", context=512)
    print(found)  # KL, perplexity, agreement, bytes and speeds of each format, as a table

Concept. The reference is the model with its weights as stored, products in float32, and K and V in float32. It reads
the text side by side with each other format, and what both say about the next token is compared, position by position.
The text is cut into windows of ``context`` tokens, each a prompt of its own (with the tokenizer's first token in place
of its own first one), and the second half of each is scored, which is what llama.cpp's ``llama-perplexity -c CONTEXT``
does: every token that counts has half a window before it or more, and figures can be held against figures that are
published in this way. (Strided windows give lower perplexities for more work; which of two formats is better comes out
the same.)

Memory: the weights twice (the reference, and one format at a time), cells for one window of each format, and at most
32 MiB of logits each; never the logits of a whole text.

Threads: any; caches and sessions are the call's own. Units: nats, bytes, tokens a second.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ._arguments import cell_formats, listed, optional_callable, refusal, whole
from ._core import CausalCache, Session
from ._divergence import Rows, Sums
from ._measured import FormatQuality, Measured
from ._prompts import Prompt, token_ids
from .errors import ArgumentError
from .ops import integer_units
from .prefix_cache import PrefixCache

if TYPE_CHECKING:
    from .models import Model

__all__ = ["CELL_FORMATS", "WEIGHT_FORMATS", "FormatQuality", "Quality", "quality", "shipped_text"]

CELL_FORMATS = ("float32", "float16", "q8_0", "q4h")
"""How caches keep K and V (docs/format.md). In q8_0 and q4h, heads are of multiples of 32 numbers."""
CELL_PAIRS = (*CELL_FORMATS, *(f"{k}/{v}" for k in CELL_FORMATS for v in CELL_FORMATS if k != v))
"""The same, and K and V apart."""
WEIGHT_FORMATS = ("stored", "float16", "q8_0", "q5_1", "q4_0")
"""How weights are kept unless somebody names others: as they are in the file, and made of that while loading."""

_WHERE = "quality"
_NUMBERS = ("float32", "float16")  # of weights; all others are blocks
_EXACT = "float32"
_LOGITS = 32 << 20  # bytes of a side's logits at once
_CHUNK = 512  # rows of a step whose logits nobody needs
_ROUNDS, _STEPS = 3, 16  # of the clock: times that a prompt is read, tokens that are computed one by one

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Quality(Measured):
    """The findings of :func:`quality`. ``print`` shows a table; ``plot`` draws it."""

    def __str__(self) -> str:
        from .viz.quality import quality_text

        return quality_text(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws KL and bytes of each format into a file; its ending says which kind (svg, png, pdf).

        Raises ``kv.errors.NotSupportedError`` where matplotlib is not installed.
        """
        from .viz.quality import draw_quality

        draw_quality(self, path)


def shipped_text() -> str:
    """English with code and tables, some 31,000 characters: pages of kvtrie's own documentation as they once were."""
    return (Path(__file__).parent / "data" / "text.md").read_text(encoding="utf-8")


def quality(
    model: str | os.PathLike[str] | Model,
    text: Prompt | None = None,
    *,
    dtypes: Sequence[str] | None = None,
    kv_dtypes: Sequence[str | tuple[str, str]] | None = None,
    precision: str = "auto",
    context: int = 512,
    windows: int | None = None,
    device: str | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Quality:
    """Reads ``text`` with a model in every format of weights and cells, and says how far each is from the reference.

    ``model``: what ``kv.models.load`` takes, or a loaded model, which is then compared in its own weights only.
    ``text``: a text or token ids, at least one window of them; what does not fill a last window is left out. None: the
    text that is shipped, :func:`shipped_text`, which needs a tokenizer. ``dtypes``: of weights; "stored" is the
    model as ``load`` takes it. None: ``WEIGHT_FORMATS``, or those of a loaded model. ``kv_dtypes``: of K and V, a name,
    or two as a pair or as "K/V"; None: those of ``CELL_FORMATS`` that the model's heads can be kept in. Each of the one
    is measured with each of the other. ``precision``: as for ``load``; the reference's is "exact", and where "auto" and
    "fast" have integer units or matrix instructions, weights as stored with K and V in float32 are a row of their own,
    which shows what these lose. A loaded model is the reference with the precision that it has.
    ``context``: tokens of a window, of which the second half is scored, 4 or more.
    ``windows``: how many are read; None: all. ``progress``: called with (windows read, windows to be read).

    Raises ``kv.errors.ArgumentError`` for a text of less than a window, a ``context`` beyond what the model takes, and
    formats that are not known; else what ``load`` raises.
    """
    optional_callable(progress, _WHERE, "progress", "a callable (done, total)")
    names = _names(CELL_FORMATS if kv_dtypes is None else _pairs(kv_dtypes), "kv_dtypes")
    unknown = [name for name in names if name not in CELL_PAIRS]
    if unknown:
        allowed = f"{', '.join(CELL_FORMATS)}, or two of them for K and V"
        raise ArgumentError(f"[{_WHERE}] kv_dtypes: got {unknown[0]!r}, allowed {allowed}")
    from .models import check_precision

    check_precision(precision, _WHERE)
    exact = _loaded(model, "stored", device, "exact")
    if kv_dtypes is None:
        names = [name for name in names if _can_keep(exact, name)]
    wanted = [name for name in _weights(model, dtypes) if name != exact.dtype or name == "stored"]
    ids = _windows(exact, text, whole(context, _WHERE, "context", 4), windows)
    reading = _Reading(exact, ids, progress, len(ids) * len(wanted))
    formats: list[FormatQuality] = []
    for dtype in wanted:
        same = dtype == "stored" and not _differs(exact, precision)
        own = exact if same else _loaded(model, dtype, device, precision)
        sides = [name for name in names if own is not exact or name != _EXACT]
        formats += reading.compare(own, sides)
        del own
    name = exact.family if not isinstance(model, (str, os.PathLike)) else Path(os.fspath(model)).name
    where = exact.device.name
    units = integer_units(exact.device)
    read = (ids.shape[1], len(ids), reading.exact.positions)
    return Quality(name, where, units, *read, reading.reference(), tuple(formats))


def _loaded(model: str | os.PathLike[str] | Model, dtype: str, device: str | None, precision: str) -> Model:
    """ "stored": whatever ``load`` takes of itself, which may be in another format."""
    from . import models

    if isinstance(model, models.Model):
        return model
    if not isinstance(model, (str, os.PathLike)):
        raise refusal(model, _WHERE, "model", "a path, a name, or a loaded model")
    return models.load(model, device, None if dtype == "stored" else dtype, precision=precision)


def _differs(exact: Model, precision: str) -> bool:
    """Whether ``precision`` computes other bits than the reference of the same weights."""
    blocks = any(dtype not in _NUMBERS for dtype in exact.kept.values())
    by_integers = blocks and integer_units(exact.device) != "none"
    return precision != exact.precision and (by_integers or exact.device._has_matrix_instructions())


def _pairs(kv_dtypes: Sequence[str | tuple[str, str]]) -> list[str]:
    """With ("q8_0", "float16") as "q8_0/float16"."""
    return [
        each if isinstance(each, str) else cell_formats(each, _WHERE, "kv_dtypes")
        for each in listed(kv_dtypes, _WHERE, "kv_dtypes", "a list of names, or of pairs of names")
    ]


def _names(value: Sequence[str], name: str) -> list[str]:
    """Without repetitions, in their order."""
    found = listed(value, _WHERE, name, "a list of names")
    for each in found:
        if not isinstance(each, str):
            raise refusal(each, _WHERE, name, "a list of names")
    if not found:
        raise ArgumentError(f"[{_WHERE}] {name}: got 0 names, allowed 1 or more")
    return list(dict.fromkeys(map(str, found)))


def _weights(model: str | os.PathLike[str] | Model, dtypes: Sequence[str] | None) -> list[str]:
    """The formats to compare, one after the other; "stored": the reference itself."""
    if isinstance(model, (str, os.PathLike)):
        return _names(WEIGHT_FORMATS if dtypes is None else dtypes, "dtypes")
    if dtypes is not None:
        raise ArgumentError(f"[{_WHERE}] dtypes: got some with a loaded model, allowed None, or a path as the model")
    return ["stored"]


def _can_keep(model: Model, name: str) -> bool:
    """Whether heads of these sizes are whole blocks of a format of cells."""
    try:
        model.caches(16, name, warm_up=False, device="null")
    except ArgumentError:
        return False
    return True


def _windows(model: Model, text: Prompt | None, context: int, windows: int | None) -> Ids:
    """Token ids [windows, context]."""
    most = min(limit for limit in (model.config.max_position_embeddings, model.config.position_limit()) if limit)
    if context > most:
        raise ArgumentError(f"[{_WHERE}] context: got {context}, allowed 4 to {most}")
    ids = token_ids(model, shipped_text() if text is None else text, _WHERE)
    known = len(ids) // context
    if known == 0:
        raise ArgumentError(f"[{_WHERE}] text: got {len(ids)} tokens, allowed {context} or more, which is a window")
    count = known if windows is None else min(known, whole(windows, _WHERE, "windows", 1))
    found: Ids = ids[: count * context].reshape(count, context).copy()
    if model.has_tokenizer and model.tokenizer.ends[0]:
        found[:, 0] = model.tokenizer.ends[0][0]
    return found


class _Reading:
    """A text beside the reference's own reading of it."""

    def __init__(self, exact: Model, ids: Ids, progress: Callable[[int, int], object] | None, total: int) -> None:
        self._model, self._ids = exact, ids
        self._progress, self._done, self._total = progress, 0, total
        self.exact = Sums()

    def compare(self, own: Model, names: Sequence[str]) -> list[FormatQuality]:
        """Of ``own`` with K and V in each of these formats."""
        sums = {name: Sums() for name in names}
        exact = Sums()
        with ExitStack() as stack:
            first = _Side(self._model, _EXACT, self._ids.shape[1], stack)
            sides = {name: _Side(own, name, self._ids.shape[1], stack) for name in names}
            for window in self._ids:
                for came, rows, others in _together(first, list(sides.values()), window):
                    exact.add(rows, rows, came)
                    for name, other in zip(names, others):
                        sums[name].add(rows, other, came)
                self._done += 1
                if self._progress is not None:
                    self._progress(self._done, self._total)
            self.exact = exact
            return [self._found(sides[name], name, sums[name]) for name in names]

    def reference(self) -> FormatQuality:
        with ExitStack() as stack:
            return self._found(_Side(self._model, _EXACT, self._ids.shape[1], stack), _EXACT, self.exact)

    def _found(self, side: _Side, name: str, sums: Sums) -> FormatQuality:
        change, error = sums.change(self.exact)
        return FormatQuality(
            dtype=side.model.dtype,
            kv_dtype=name,
            precision=side.model.precision,
            kl=float(sums.divergence.mean()),
            kl_tail=sums.tail(),
            perplexity=sums.perplexity,
            perplexity_change=change,
            perplexity_error=error,
            agreement=sums.agreement,
            weight_bytes=side.model.nbytes,
            token_bytes=side.token_bytes,
            prompt_speed=side.prompt_speed(self._ids[0]),
            step_speed=side.step_speed(self._ids[0]),
        )


def _together(first: _Side, others: Sequence[_Side], window: Ids) -> Iterator[tuple[Ids, Rows, list[Rows]]]:
    """The tokens that came, [rows], the reference's logits before each, and those of the others."""
    readings = [side.rows(window) for side in (first, *others)]
    at = len(window) // 2 + 1
    for exact, *rows in zip(*readings):
        yield window[at : at + len(exact)], exact, rows
        at += len(exact)


class _Side:
    """A model with cells in one format, and room for a window."""

    def __init__(self, model: Model, kv_dtype: str, context: int, stack: ExitStack) -> None:
        self.model = model
        model.warm_up(kv_dtype)
        caches = model.caches(capacity=context + 64, dtype=kv_dtype, warm_up=False)
        attending = [cache for cache in caches if isinstance(cache, CausalCache)]
        self.token_bytes = sum(cache.nbytes // (context + 64) for cache in attending)
        self._cache = stack.enter_context(PrefixCache(caches, host_bytes=0))
        self._chunk = max(1, min(_CHUNK, _LOGITS // (4 * model.config.vocab_size)))

    def rows(self, window: Ids) -> Iterator[Rows]:
        """Logits behind the positions of the second half whose next token is in the window, in pieces that are equal
        for all sides of as large a vocabulary."""
        half = len(window) // 2
        with self._read(window[:half]) as session:
            session.append(window[half:-1])
            for step in session.prefill(chunk=self._chunk):
                yield np.asarray(self.model(step, all_rows=True), np.float32)

    def prompt_speed(self, window: Ids) -> float:
        """Tokens a second of half a window."""
        took = []
        for _ in range(_ROUNDS):
            begun = time.perf_counter()
            self._read(window[: len(window) // 2]).close()
            took.append(time.perf_counter() - begun)
        return (len(window) // 2) / statistics.median(took)

    def step_speed(self, window: Ids) -> float:
        """Tokens a second, one in each step, behind half a window."""
        half = len(window) // 2
        took = []
        with self._read(window[:half]) as session:
            for token in window[half : half + _STEPS]:
                begun = time.perf_counter()
                session.append([int(token)])
                np.asarray(self.model(session.decode()))
                took.append(time.perf_counter() - begun)
        return 1 / statistics.median(took)

    def _read(self, tokens: Ids) -> Session:
        """A session behind these tokens, all of them computed now."""
        session = self._cache.begin(tokens, use=False, publish=False)
        try:
            for step in session.prefill(chunk=_CHUNK):
                np.asarray(self.model(step))
        except BaseException:
            session.close()
            raise
        return session
