"""The two calls: what they take, and the stages that Ray Data is given.

Threads: any. Ends: Ctrl-C while a result is read ends Ray's execution and its actors, as for every dataset. An actor
that dies is started again, and does the block again that it had; blocks that were given back stay. Other checkpoints of
a dataset's progress are Ray's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from .._arguments import flag, listed, refusal, shown, text, whole
from .._draft_model import DraftModel
from .._options import SamplingOptions, checked_sampling
from .._prediction_head import PredictionHead
from ..draft import NAMES, Draft
from ..errors import ArgumentError, ArgumentTypeError, NotSupportedError
from ..models.tokenizer import Tokenizer
from ..stopping import Stop
from .engine import Engine, EngineOptions, ModelSource, checked_engine, ray_data
from .prompts import KEY, Prompts, TokenizerSource, encode
from .workers import Answering, Scoring, Work, Worker, Writing

if TYPE_CHECKING:
    from ray.data import Dataset
    from typing_extensions import Unpack

_ROW = "__kvtrie_row"
_CHUNK = 512  # rows of a prompt in a step: nobody waits for a first token here, so that prefixes are rarely cut


class BatchOptions(EngineOptions, total=False):
    """The keywords of both calls: where it is computed (:class:`EngineOptions`), and how rows go there.

    ``replicas``: actors, each with a model and a cache of its own; 1. ``batch_size``: rows of a block, which an actor
    takes at a time, and does again when it dies; 512. ``group``: whether rows are sorted by their prompts' tokens
    first; True. ``ordered``: whether the result has the dataset's order, which is another sort; False: that in which
    rows were done. ``max_sessions``: rows of a block that are computed at the same time, of scores the continuations of
    one row; 8. ``chunk``: tokens that one prompt has in a step at most; 512. ``namespace``: "default".
    ``tokenizer``: a path or name whose tokenizer encodes the prompts, or a callable that makes one; needed where
    ``model`` is a callable and prompts are texts or messages. ``template``: further variables of the chat template.
    ``on_error``: "raise", or "column" for a column ``error``, a text or null, in place of raising what a row alone
    cannot have. ``ray_actor_options``: what the actors get of Ray, ``num_cpus``, ``num_gpus``, ``resources``,
    ``runtime_env``, ...; they reserve no processor unless told.
    """

    replicas: int
    batch_size: int
    group: bool
    ordered: bool
    max_sessions: int
    chunk: int
    namespace: str
    tokenizer: str | os.PathLike[str] | Callable[[], Tokenizer] | None
    template: Mapping[str, object]
    on_error: str
    ray_actor_options: Mapping[str, object]


class GenerateOptions(BatchOptions, SamplingOptions, total=False):
    """All that :func:`generate` takes by keyword beside what it names."""


def generate(
    dataset: Dataset,
    model: ModelSource,
    *,
    prompt: str = "prompt",
    output: str = "generated",
    max_tokens: int = 64,
    stop: Stop = None,
    ignore_eos: bool = False,
    seed_column: str | None = None,
    draft: Draft = None,
    **options: Unpack[GenerateOptions],
) -> Dataset:
    """The dataset's rows with an answer to each one's prompt; lazy.

    ``dataset``: a ``ray.data.Dataset``. ``prompt``: the column of the prompts, each a text, chat messages
    ({"role", "content"}) that the checkpoint's template lays out, or token ids. ``model``: a path or name as
    ``kv.models.load`` takes, or a callable, which Ray takes to the actors, that makes a model or (model, cache).
    ``max_tokens``, ``stop``, ``ignore_eos`` and the parameters of the choice are those of ``kv.generate``; a stop
    text is not part of the answer. With ``seed``, each row has the seed ``kv.ray.row_seed(seed, its tokens)``, so that
    answers do not depend on who is computed where; with ``seed_column`` it is in a column. ``draft``: what guesses
    tokens that a step then checks, as in ``kv.generate``: names and callables, which go to the actors.
    ``options``: :class:`BatchOptions` and ``kvtrie.Sampling``.

    Columns that are added: ``output``, the text (null without a tokenizer); ``output``_tokens, its ids, with what ended
    it; ``finish_reason``, "stop" or "length"; ``prompt_tokens``; ``reused``, those of them that were not computed for
    this row; with ``logprobs``, ``output``_logprobs and ``output``_top_logprobs; ``error`` as ``on_error`` says.

    Raises ``kv.errors.NotSupportedError`` without Ray, and ``kv.errors.ArgumentError`` or
    ``kv.errors.ArgumentTypeError`` for arguments; what is found out later, Ray raises with the same as its cause.
    """
    where = "ray.generate"
    sampling, batch = _divided(cast("Mapping[str, object]", options), where)
    _require_seeds(sampling, seed_column, where)
    most = whole(max_tokens, where, "max_tokens", 0)
    writing = Writing(
        most, stop, flag(ignore_eos, where, "ignore_eos"), sampling, seed_column, _drafts_of_actors(draft, where)
    )
    added = [output, f"{output}_tokens", "finish_reason"]
    if sampling.get("logprobs") is not None:
        added += [f"{output}_logprobs", f"{output}_top_logprobs"]
    stages = _Stages.of(model, batch, prompt, output, added, where)
    return stages.applied(dataset, Answering, {"writing": writing})


def score(
    dataset: Dataset,
    model: ModelSource,
    *,
    prompt: str = "prompt",
    continuations: str = "choices",
    output: str = "scores",
    **options: Unpack[BatchOptions],
) -> Dataset:
    """The dataset's rows with the log-probabilities of each one's continuations, as ``kv.score`` gives them; lazy.

    ``continuations``: the column of lists of texts or token ids; a row's prompt is computed once for all of them. All
    else as in :func:`generate`.

    Columns that are added, a list with one for each continuation: ``output``, natural logarithms of their
    probabilities; ``output``_logprobs, those of each token; ``output``_greedy, whether each token was the likeliest.
    And for the row: ``output``_best, the place of the likeliest continuation; ``prompt_tokens``; ``reused``; ``error``
    as ``on_error`` says.
    """
    where = "ray.score"
    sampling, batch = _divided(cast("Mapping[str, object]", options), where)
    if sampling:
        raise ArgumentTypeError(f"[{where}] {next(iter(sampling))}: there is no such parameter: nothing is chosen")
    added = [output, f"{output}_logprobs", f"{output}_greedy", f"{output}_best"]
    stages = _Stages.of(model, batch, prompt, output, added, where)
    columns = {"prompt": prompt, "continuations": text(continuations, where, "continuations")}
    return stages.applied(dataset, Scoring, columns)


@dataclass(frozen=True)
class _Stages:
    """Checked arguments of both calls."""

    engine: Engine
    prompts: Prompts
    work: Work
    replicas: int
    batch_size: int
    group: bool
    ordered: bool
    actor: Mapping[str, object]

    @classmethod
    def of(
        cls, model: object, options: BatchOptions, prompt: str, output: str, added: list[str], where: str
    ) -> _Stages:
        errors = _error_column(options.get("on_error", "raise"), where)
        engine = {name: value for name, value in options.items() if name in EngineOptions.__annotations__}
        added = [*added, "prompt_tokens", "reused", *([] if errors is None else [errors])]
        column, named = text(prompt, where, "prompt"), text(output, where, "output")
        source = _tokenizer_source(model, options.get("tokenizer"), where)
        template = dict(options.get("template", {}))
        return cls(
            engine=checked_engine(model, engine, where),
            prompts=Prompts(where, column, source, template, tuple(added), errors is not None),
            work=Work(
                where,
                named,
                errors,
                text(options.get("namespace", "default"), where, "namespace"),
                whole(options.get("max_sessions", 8), where, "max_sessions", 1),
                whole(options.get("chunk", _CHUNK), where, "chunk", 1),
            ),
            replicas=whole(options.get("replicas", 1), where, "replicas", 1),
            batch_size=whole(options.get("batch_size", 512), where, "batch_size", 1),
            group=flag(options.get("group", True), where, "group"),
            ordered=flag(options.get("ordered", False), where, "ordered"),
            actor={"num_cpus": 0, **options.get("ray_actor_options", {})},
        )

    def applied(self, dataset: Dataset, worker: type[Worker], arguments: Mapping[str, object]) -> Dataset:
        data = ray_data()
        if not isinstance(dataset, data.Dataset):
            raise refusal(dataset, self.work.where, "dataset", "a ray.data.Dataset")
        if self.ordered:
            dataset = _numbered(dataset, self.work.where)
        encoded = dataset.map_batches(
            encode, fn_kwargs={"prompts": self.prompts}, batch_format="pyarrow", batch_size=self.batch_size
        )
        grouped = encoded.sort(KEY) if self.group else encoded
        done = grouped.repartition(target_num_rows_per_block=self.batch_size).map_batches(
            worker,
            fn_constructor_kwargs={"engine": self.engine, "work": self.work, **arguments},
            batch_format="pyarrow",
            batch_size=self.batch_size,
            compute=data.ActorPoolStrategy(size=self.replicas),
            **self.actor,
        )
        return done.sort(_ROW).drop_columns([_ROW]) if self.ordered else done


def _divided(options: Mapping[str, object], where: str) -> tuple[SamplingOptions, BatchOptions]:
    """The parameters of the choice, checked, and the others."""
    known = {**EngineOptions.__annotations__, **BatchOptions.__annotations__}
    sampling = {name: value for name, value in options.items() if name in SamplingOptions.__annotations__}
    batch = {name: value for name, value in options.items() if name not in sampling}
    for name in batch:
        if name not in known:
            raise ArgumentTypeError(f"[{where}] {name}: there is no such parameter, allowed {', '.join(sorted(known))}")
    checked_sampling(cast(SamplingOptions, sampling))
    return cast(SamplingOptions, sampling), cast(BatchOptions, batch)


def _drafts_of_actors(draft: Draft, where: str) -> Draft:
    """Raises for what no actor can have, and for a name that there is none of."""
    allowed = f"{', '.join(NAMES)}, a callable (tokens, most) -> tokens, or a list of them"
    if draft is None:
        return None
    single = isinstance(draft, (str, DraftModel, PredictionHead)) or callable(draft)
    each: Iterable[object] = [draft] if single else listed(cast("Sequence[object]", draft), where, "draft", allowed)
    for one in each:
        if isinstance(one, str) and one not in NAMES:
            raise ArgumentError(f"[{where}] draft: got {one!r}, allowed {allowed}")
        if not isinstance(one, str) and not callable(one):
            raise refusal(one, where, "draft", allowed)
    return draft


def _require_seeds(sampling: SamplingOptions, column: str | None, where: str) -> None:
    if column is None:
        return
    text(column, where, "seed_column")
    if sampling.get("seed") is not None:
        raise ArgumentError(f"[{where}] seed: got {sampling['seed']} and seed_column {column!r}, allowed one of them")


def _error_column(on_error: object, where: str) -> str | None:
    if on_error not in ("raise", "column"):
        raise ArgumentError(f"[{where}] on_error: got {shown(on_error)}, allowed 'raise' or 'column'")
    return "error" if on_error == "column" else None


def _tokenizer_source(model: object, tokenizer: object, where: str) -> TokenizerSource:
    """None: there is none, so that prompts have to be token ids."""
    if tokenizer is None:
        return os.fspath(cast(str, model)) if isinstance(model, (str, os.PathLike)) else None
    if isinstance(tokenizer, (str, os.PathLike)):
        return os.fspath(cast(str, tokenizer))
    if not callable(tokenizer):
        raise refusal(tokenizer, where, "tokenizer", "a path, a name, a callable that makes one, or None")
    return cast("Callable[[], Tokenizer]", tokenizer)


def _numbered(dataset: Dataset, where: str) -> Dataset:
    try:
        from ray.data.expressions import monotonically_increasing_id
    except ImportError as error:
        raise NotSupportedError(
            f"[{where}] ordered: this version of Ray does not number rows: sort by a column"
        ) from error
    return dataset.with_column(_ROW, monotonically_increasing_id())
