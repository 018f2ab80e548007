"""Ways to use a session of transformers: what goes on after an exception must give the tokens of a call without it.

Of the kind of ``ways.Run``: ``go`` does all of it with the objects that there are, and is called again after an
exception. Each has a namespace of its own in a cache that its class keeps, so that nothing is known at first. What
``generate`` gives without a session is what is wanted.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
from collections.abc import Callable
from typing import Any, ClassVar

import torch

import hf_models as hf
import kvtrie as kv
from ways import Run

COUNT = 3  # tokens of an answer
TEXT = hf.prompt(9)
MORE, OTHER = hf.prompt(4, seed=2), hf.prompt(5, seed=3)
SHARING = torch.cat([TEXT[:, :6], OTHER], 1)

_names = itertools.count()


def answer(model: Any, ids: Any, cache: Any = None, **options: Any) -> Any:
    options.setdefault("attention_mask", torch.ones_like(ids))
    given = {"do_sample": False, "max_new_tokens": COUNT, "min_new_tokens": COUNT, "pad_token_id": hf.PAD, **options}
    torch.manual_seed(5)
    return model.generate(ids, cache=cache, **given)


_kept: set[Opened] = set()


class Opened:
    """A cache of a model, as a sweep looks at it."""

    def __init__(self, name: str, form: str, **options: Any) -> None:
        self.process = os.getpid()
        self.hf = kv.hf.Cache(hf.tiny(name), **{"capacity": 1024, "slots": 64, "form": form, **options})

    @property
    def closed(self) -> bool:
        return self.hf.prefix_cache.closed

    def check(self) -> list[str]:
        return self.hf.prefix_cache.check()

    def stats(self) -> Any:
        return self.hf.prefix_cache.stats()

    def close(self) -> None:
        """What comes next opens another one."""
        _opened.cache_clear()
        _kept.discard(self)
        self.hf.close()
        if os.getpid() != self.process:
            return  # where it does nothing
        gc.collect()  # a cache whose making was interrupted, and its hooks
        model = self.hf.model
        if any(each.hf.model is model for each in _kept):
            return
        assert "forward" not in model.__dict__ and "forward" not in self.hf.decoder.__dict__
        assert "kvtrie" not in str(model.config._attn_implementation)


@functools.cache
def _opened(name: str, form: str) -> Opened:
    made = Opened(name, form)
    _kept.add(made)
    return made


class Kept:
    """Opened once for a whole sweep: closing it is the sweep's to do where it closes caches."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def close(self) -> None:
        """See :func:`close_all`."""


class HfWay(Run):
    """A conversation: an answer, another one behind more text, and one that shares the beginning of the first."""

    model_name, form = "llama", "copy"
    folder, closes = "hf/", ("cache", "object")
    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, kind: str) -> None:
        self.kind = kind
        opened = _opened(self.model_name, self.form)
        self.cache: Any = opened if kind == "closing" else Kept(opened)
        self.model = opened.hf.model
        self.wanted = self.right()
        self.handed: list[Any] = []
        self.name = f"way {next(_names)}"
        self.texts: list[Any] = []

    def session(self, *given: Any) -> Any:
        return self.cache.hf.session(*given, namespace=self.name)

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        model = hf.tiny(cls.model_name)
        first = answer(model, TEXT, **cls.options)
        second = answer(model, torch.cat([first[:1], MORE], 1), **cls.options)
        return [each.tolist() for each in (first, second, answer(model, SHARING, **cls.options))]

    @property
    def tokens(self) -> list[Any]:
        return [each.tolist() for each in self.texts]

    def go(self) -> None:
        if self.open is None:
            self.open = self.session()
        if not self.texts:
            self.texts = [answer(self.model, TEXT, self.open, **self.options)]
        if len(self.texts) == 1:
            text = torch.cat([self.texts[0][:1], MORE], 1)
            self.texts = [*self.texts, answer(self.model, text, self.open, **self.options)]
        if len(self.texts) == 2:
            with self.session() as other:
                self.texts = [*self.texts, answer(self.model, SHARING, other, **self.options)]

    def leave(self) -> None:
        self.texts = []
        super().leave()


class FromTheStart(HfWay):
    """Everything again with the session that there is, whatever it has."""

    def go(self) -> None:
        self.texts = []
        super().go()


class Cells(HfWay):
    form = "cells"


class CellsFromTheStart(FromTheStart):
    form = "cells"


class Windows(FromTheStart):
    model_name = "gemma3"


class States(FromTheStart):
    model_name = "qwen3_5"


class NoAttention(FromTheStart):
    model_name = "mamba2"


class Sampled(FromTheStart):
    options: ClassVar[dict[str, Any]] = {"do_sample": True, "temperature": 2.0}


class Beams(FromTheStart):
    options: ClassVar[dict[str, Any]] = {"num_beams": 3}


class BeamsOfCells(Beams):
    form = "cells"


class Lookup(FromTheStart):
    """Crops the session wherever candidates were wrong."""

    options: ClassVar[dict[str, Any]] = {"prompt_lookup_num_tokens": 3, "max_new_tokens": 6, "min_new_tokens": 6}


class InPieces(FromTheStart):
    options: ClassVar[dict[str, Any]] = {"prefill_chunk_size": 4}


class Batch(HfWay):
    """Two rows with padding."""

    ids = torch.cat([TEXT, torch.cat([torch.full((1, 3), hf.PAD), hf.prompt(6, seed=4)], 1)])
    mask = (ids != hf.PAD).long()

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        first = answer(hf.tiny(cls.model_name), cls.ids, attention_mask=cls.mask)
        return [first.tolist(), answer(hf.tiny(cls.model_name), *cls.then(first)[:1], **cls.then(first)[1]).tolist()]

    @classmethod
    def then(cls, first: Any) -> tuple[Any, dict[str, Any]]:
        ids = torch.cat([first, MORE.repeat(2, 1)], 1)
        ones = torch.ones(2, ids.shape[1] - cls.mask.shape[1], dtype=torch.long)
        return ids, {"attention_mask": torch.cat([cls.mask, ones], 1)}

    def go(self) -> None:
        if self.open is None:
            self.open = self.session()
        if not self.texts:
            self.texts = [answer(self.model, self.ids, self.open, attention_mask=self.mask)]
        ids, options = self.then(self.texts[0])
        self.texts = [self.texts[0], answer(self.model, ids, self.open, **options)]


class Loop(HfWay):
    """A loop of one's own, by what the session says that it has; announced, branched, cropped."""

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        return [answer(hf.tiny(cls.model_name), ids).tolist() for ids in (TEXT, TEXT)]

    def go(self) -> None:
        if self.open is None:
            self.open = self.session(TEXT)
        if not self.texts:
            self.texts = [TEXT]
        self.read(self.open, 0)
        with self.open.branch() as twin:
            self.texts = [self.texts[0], TEXT]
            self.read(twin, 1)

    def read(self, past: Any, at: int) -> None:
        while (text := self.texts[at]).shape[1] < TEXT.shape[1] + COUNT:
            self.behind(past, text)
            with torch.no_grad():
                logits = self.model(text[:, past.get_seq_length() :], cache=past).logits
            token = logits[:, -1].argmax(-1, keepdim=True)
            self.texts = [*self.texts[:at], torch.cat([text, token], 1), *self.texts[at + 1 :]]

    def behind(self, past: Any, text: Any) -> None:
        """Where a call that raised counts, or a branch is ahead, it goes back."""
        length = past.get_seq_length()
        assert all(own == text[0, : len(own)].tolist() for own in past.tokens) or length > text.shape[1]
        if length >= text.shape[1]:
            try:
                past.crop(text.shape[1] - 1 - length)
            except kv.errors.NotRestorableError:
                past.reset()


class LoopOfCells(Loop):
    form = "cells"


class LoopOfWindows(Loop):
    model_name = "gemma3"


class Changed(HfWay):
    """The model computes something else from the second answer on."""

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        model = hf.tiny(cls.model_name)
        first = answer(model, TEXT)
        with other_state(model):
            return [first.tolist(), answer(model, torch.cat([first, MORE], 1)).tolist()]

    def go(self) -> None:
        if self.open is None:
            self.open = self.session()
        if not self.texts:
            self.texts = [answer(self.model, TEXT, self.open)]
        with other_state(self.model):
            text = torch.cat([self.texts[0], MORE], 1)
            self.texts = [self.texts[0], answer(self.model, text, self.open)]


class ChangedCells(Changed):
    form = "cells"


class other_state:  # noqa: N801 (a block)
    """In which the model computes something else."""

    def __init__(self, model: Any) -> None:
        self._attention = model.get_decoder().layers[0].self_attn

    def __enter__(self) -> None:
        self._attention.scaling *= 2

    def __exit__(self, *args: object) -> None:
        self._attention.scaling /= 2


class Opening(HfWay):
    """A cache of its own, opened and closed."""

    opened_form = "copy"
    own: Any

    def __init__(self, kind: str) -> None:
        self.kind, self.name, self.open = kind, "default", None
        self.model, self.wanted = hf.tiny(self.model_name), self.right()
        self.handed, self.texts = [], []
        self.cache, self.own = NoCache(), None

    @classmethod
    @functools.cache
    def right(cls) -> list[Any]:
        return [answer(hf.tiny(cls.model_name), TEXT).tolist()]

    def go(self) -> None:
        if self.own is None:
            self.own = Opened(self.model_name, self.opened_form)
        self.cache = self.own
        if not self.texts:
            with self.cache.hf.session() as past:
                self.texts = [answer(self.model, TEXT, past)]
        self.own.close()
        self.own = None

    def leave(self) -> None:
        self.texts = []
        if self.own is not None:
            self.own.close()
            self.own = None

    def close(self) -> None:
        self.leave()


class NoCache:
    closed = True

    def close(self) -> None:
        """There is none."""


class OpeningOfCells(Opening):
    opened_form = "cells"


WAYS: tuple[Callable[[str], HfWay], ...] = (
    HfWay,
    FromTheStart,
    Cells,
    CellsFromTheStart,
    Windows,
    States,
    NoAttention,
    Sampled,
    Beams,
    BeamsOfCells,
    Lookup,
    InPieces,
    Batch,
    Loop,
    LoopOfCells,
    LoopOfWindows,
    Changed,
    ChangedCells,
    Opening,
    OpeningOfCells,
)


def close_all() -> None:
    """What a sweep kept open."""
    for opened in list(_kept):
        opened.close()
