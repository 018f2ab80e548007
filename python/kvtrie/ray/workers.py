"""The actors' work: a block of rows in, the same rows with their answers or scores out.

A block's prompts are asked for at once and in its order, which is that of their tokens: who is next to whom shares a
prefix, and a prefix that several need is computed by the first of them (``kv.Batcher``).

Threads: an actor does one block after the other; the batcher has a thread of its own. Ends: what a row alone cannot
have (a prompt that is too long, a token that there is not) is its error, in a column or raised; what fails for all,
such as the device, is raised. The cache is closed when Ray lets go of the actor; an actor that was killed leaves what
its disk tier has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from .._arguments import listed
from .._flushing import flushed
from .._options import SamplingOptions
from .._prompts import vocab_size_of
from ..batcher import Batcher
from ..draft import Draft
from ..errors import ArgumentError, ArgumentTypeError, CacheFullError, NotSupportedError
from ..request import Request
from ..sampling import TokenLogprob
from ..score import Score, continuation_ids, scores_in
from ..stopping import Stop, Stopper, has_tokenizer
from .engine import Engine
from .prompts import ERROR, KEY, row_seed, tokens_of

if TYPE_CHECKING:
    from pyarrow import Table

_log = logging.getLogger("kvtrie.ray")
_REFUSED = (ArgumentError, ArgumentTypeError, CacheFullError, NotSupportedError)
_MOST = 1 << 30  # requests that may wait: a block's rows are bounded already

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Work:
    """The arguments of both kinds of work. ``errors``: the column that has them; None: they are raised."""

    where: str
    output: str
    errors: str | None
    namespace: str
    max_sessions: int
    chunk: int


@dataclass(frozen=True)
class Writing:
    """How answers are made."""

    max_tokens: int
    stop: Stop
    ignore_eos: bool
    sampling: SamplingOptions
    seed_column: str | None
    draft: Draft = None


class Outcome(NamedTuple):
    """The outcome of a row: ``values`` of its own columns by name, what its prompt took, or why there is nothing."""

    values: dict[str, object]
    prompt_tokens: int | None = None
    reused: int | None = None
    error: str | None = None


class Worker:
    """The common work of all actors; ``outcomes`` is what they differ in. Made and called by Ray."""

    def __init__(self, engine: Engine, work: Work, mtp: bool = False) -> None:
        self.work = work
        self.model, self.cache = engine.open(mtp)

    def __call__(self, table: Table) -> Table:
        import pyarrow

        early = table[ERROR].to_pylist()
        rows = [at for at, error in enumerate(early) if error is None]
        sound = table.take(pyarrow.array(rows, pyarrow.int64()))
        prompts = [tokens_of(key) for key in sound[KEY].to_pylist()]
        found = dict(zip(rows, self.outcomes(sound, prompts)))
        everyone = [found[at] if at in found else Outcome({}, error=error) for at, error in enumerate(early)]
        return self._written(table.drop_columns([KEY, ERROR]), everyone)

    def outcomes(self, table: Table, prompts: Sequence[Tokens]) -> list[Outcome]:
        raise NotImplementedError

    def types(self) -> dict[str, object]:
        """The columns of ``Outcome.values``, and their types in Arrow."""
        raise NotImplementedError

    def require_fits(self, prompt: Tokens, more: int) -> None:
        """Raises where the model would refuse the step that has it, and with it the rows that share the step."""
        size = vocab_size_of(self.model)
        if size is not None and prompt.max() >= size:
            raise ArgumentError(f"[{self.work.where}] prompt: got token id {prompt.max()}, allowed 0 to {size - 1}")
        limit_of = getattr(getattr(self.model, "config", None), "position_limit", None)
        limit = None if limit_of is None else limit_of()
        if limit is not None and len(prompt) + more > limit:
            got = f"{len(prompt)} tokens and {more} more"
            raise ArgumentError(f"[{self.work.where}] prompt: got {got}, allowed {limit} with this model")

    def failed(self, error: Exception) -> Outcome:
        if self.work.errors is None:
            raise error
        return Outcome({}, error=f"{error}")

    def _written(self, table: Table, outcomes: Sequence[Outcome]) -> Table:
        import pyarrow

        for name, kind in self.types().items():
            table = table.append_column(name, pyarrow.array([each.values.get(name) for each in outcomes], kind))
        for name in ("prompt_tokens", "reused"):
            numbers = [getattr(each, name) for each in outcomes]
            table = table.append_column(name, pyarrow.array(numbers, pyarrow.int32()))
        if self.work.errors is not None:
            errors = pyarrow.array([each.error for each in outcomes], pyarrow.string())
            table = table.append_column(self.work.errors, errors)
        return table

    def close(self) -> None:
        """Writes what the disk tier does not have, and ends the cache. It may be called again."""
        try:
            if not flushed(self.cache):
                _log.warning("ray: some of the state was not written to the disk")
        finally:
            self.cache.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # one that was never made, or whose device is gone
            self.close()


class Answering(Worker):
    """Generates: all rows of a block are requests of one batcher."""

    def __init__(self, engine: Engine, work: Work, writing: Writing) -> None:
        names = writing.draft if isinstance(writing.draft, (list, tuple)) else [writing.draft]
        super().__init__(engine, work, mtp=any(isinstance(name, str) and name == "mtp" for name in names))
        self.writing = writing
        self.batcher = Batcher(
            self.model,
            self.cache,
            max_sessions=work.max_sessions,
            chunk=work.chunk,
            max_waiting=_MOST,
            stall=None,
            draft=writing.draft,
        )

    def types(self) -> dict[str, object]:
        import pyarrow as pa

        own: dict[str, object] = {
            self.work.output: pa.string(),
            f"{self.work.output}_tokens": pa.list_(pa.int32()),
            "finish_reason": pa.string(),
        }
        if self.writing.sampling.get("logprobs") is not None:
            pair = pa.struct([("token", pa.int32()), ("logprob", pa.float64())])
            own[f"{self.work.output}_logprobs"] = pa.list_(pa.float64())
            own[f"{self.work.output}_top_logprobs"] = pa.list_(pa.list_(pair))
        return own

    def outcomes(self, table: Table, prompts: Sequence[Tokens]) -> list[Outcome]:
        column = self.writing.seed_column
        given: list[object] = [None] * len(prompts) if column is None else table[column].to_pylist()
        asked: list[Request[int] | Outcome] = []
        try:
            for prompt, seed in zip(prompts, given):
                asked.append(self._ask(prompt, seed))
            return [self._answer(each) if isinstance(each, Request) else each for each in asked]
        finally:
            for each in asked:
                if isinstance(each, Request):
                    each.cancel()  # nothing where it has ended

    def _ask(self, prompt: Tokens, seed: object) -> Request[int] | Outcome:
        how = self.writing
        sampling = SamplingOptions(**how.sampling)
        given = sampling.get("seed")
        if how.seed_column is not None:
            sampling["seed"] = seed  # type: ignore[typeddict-item]  # checked where it is used
        elif given is not None:
            sampling["seed"] = row_seed(given, prompt)
        try:
            self.require_fits(prompt, how.max_tokens)
            return self.batcher.submit(
                prompt, how.max_tokens, how.stop, ignore_eos=how.ignore_eos, namespace=self.work.namespace, **sampling
            )
        except _REFUSED as error:
            return self.failed(error)

    def _answer(self, request: Request[int]) -> Outcome:
        try:
            tokens = request.result()
        except _REFUSED as error:
            return self.failed(error)
        name = self.work.output
        values: dict[str, object] = {
            name: self._text(tokens),
            f"{name}_tokens": tokens,
            "finish_reason": request.finish_reason,
            f"{name}_logprobs": [each.logprob for each in request.logprobs],
            f"{name}_top_logprobs": [_pairs(each) for each in request.logprobs],
        }
        return Outcome(values, request.prompt_tokens, request.reused)

    def _text(self, tokens: Sequence[int]) -> str | None:
        """Up to its stop text; None for a model without a tokenizer."""
        if not has_tokenizer(self.model):
            return None
        return Stopper(self.model, self.writing.stop, self.writing.ignore_eos, wants_text=True).text_of(tokens)

    def close(self) -> None:
        batcher = getattr(self, "batcher", None)  # where it came to have one
        try:
            if batcher is not None:
                batcher.close()
        finally:
            super().close()


class Scoring(Worker):
    """Scores continuations: one row after the other, all of a row's in the same steps."""

    def __init__(self, engine: Engine, work: Work, prompt: str, continuations: str) -> None:
        super().__init__(engine, work)
        self._prompt, self._continuations = prompt, continuations

    def types(self) -> dict[str, object]:
        import pyarrow as pa

        name = self.work.output
        return {
            name: pa.list_(pa.float64()),
            f"{name}_logprobs": pa.list_(pa.list_(pa.float64())),
            f"{name}_greedy": pa.list_(pa.bool_()),
            f"{name}_best": pa.int32(),
        }

    def outcomes(self, table: Table, prompts: Sequence[Tokens]) -> list[Outcome]:
        if self._continuations not in table.column_names:
            names = ", ".join(name for name in table.column_names if name not in (KEY, ERROR))
            raise ArgumentError(
                f"[{self.work.where}] continuations: got column {self._continuations!r}, allowed {names}"
            )
        texts = table[self._prompt].to_pylist()
        choices = table[self._continuations].to_pylist()
        return [self._scored(*row) for row in zip(texts, prompts, choices)]

    def _scored(self, text: object, prompt: Tokens, choices: object) -> Outcome:
        try:
            given = listed(choices, self.work.where, "continuations", "a list of texts or of token ids")  # type: ignore[arg-type]
            source = text if isinstance(text, str) else prompt
            wanted = [continuation_ids(self.model, source, prompt, each) for each in given]
            self.require_fits(prompt, max(map(len, wanted), default=0))
            with self.cache.begin(prompt, self.work.namespace) as session:
                reused = int(session.reused)
                scores = scores_in(self.model, self.cache, session, wanted, self.work.max_sessions, self.work.chunk)
        except _REFUSED as error:
            return self.failed(error)
        return Outcome(self._values(scores), len(prompt), reused)

    def _values(self, scores: Sequence[Score]) -> dict[str, object]:
        name, sums = self.work.output, [score.logprob for score in scores]
        return {
            name: sums,
            f"{name}_logprobs": [score.logprobs for score in scores],
            f"{name}_greedy": [score.greedy for score in scores],
            f"{name}_best": int(np.argmax(sums)) if sums else None,
        }


def _pairs(logprob: TokenLogprob) -> list[dict[str, object]]:
    return [{"token": token, "logprob": value} for token, value in logprob.top]
