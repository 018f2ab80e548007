"""The requests of a fleet: a trace cut, sped up or repeated, and each request with the fingerprints of its prompt.

A fleet of 1,000 replicas needs the requests of as many users. *Copies* of a trace make them: each is the whole trace,
begun a little later than the one before, and its blocks are its own, so that no conversation of one copy helps another.
What many conversations of the trace have in common stays common: a block that at least one in a hundred requests has.

    copy 0     [ shared ][ a ][ b ]          copy 1     [ shared ][ a' ][ b' ]

Fingerprints are those of ``kv.trie.fingerprints``, of which a block is 64 symbols. A trace whose symbols are blocks of
tokens is replayed with each symbol 64 times, which changes no count: then a fingerprint is of a block of the trace.

Threads: none of its own. Units: seconds; symbols of the trace, or *cells*, as the replicas hold them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from .. import _core
from ..errors import ArgumentError
from ..ray.scale.routing import BLOCK, Prompt
from ..ray.scale.summaries import short
from .lines import LARGEST
from .tokens import NO_TOKENS, Int32Array
from .traces import Request, Trace

COPIES_WITHIN = 60.0  # seconds in which all copies begin
SHARED_BY = 100  # a block that one in so many requests has is common to all copies


@dataclass(frozen=True)
class Cells:
    """How symbols become cells. ``repeat``: cells of a symbol; ``tokens``: that a cell stands for, may be a fraction;
    ``block``: tokens between two fingerprints; ``whole``: as in ``Trace``."""

    repeat: int
    symbol_tokens: int
    whole: bool

    @staticmethod
    def of(trace: Trace) -> Cells:
        return Cells(1 if trace.symbol_tokens == 1 else BLOCK, trace.symbol_tokens, trace.whole)

    @property
    def block(self) -> int:
        return BLOCK * self.symbol_tokens // self.repeat

    def tokens(self, cells: int) -> int:
        return cells * self.symbol_tokens // self.repeat

    def of_symbols(self, symbols: Int32Array) -> Int32Array:
        return symbols if self.repeat == 1 else np.repeat(symbols, self.repeat)


@dataclass(frozen=True)
class Arrival:
    """A request at ``time`` seconds: its cells, and what a router is told about it. ``path``: its fingerprints in full;
    ``answer``: tokens to decode."""

    time: float
    cells: Int32Array
    output: Int32Array
    namespace: str
    path: list[int]
    prompt: Prompt
    answer: int

    def whole_path(self) -> list[int]:
        """The fingerprints of prompt and answer."""
        if not len(self.output):
            return self.path
        path: list[int] = _core.fingerprints(np.concatenate([self.cells, self.output]), self.namespace).tolist()
        return path


def arrival(request: Request, cells: Cells) -> Arrival:
    """A request as the replicas and routers take it."""
    prompt, output = cells.of_symbols(request.tokens), cells.of_symbols(request.output)
    path = _core.fingerprints(prompt, request.namespace)
    tokens = len(request.tokens) * cells.symbol_tokens
    answer = max(request.generated, len(request.output) * cells.symbol_tokens)
    asked = Prompt(tokens, short(path).tolist(), cells.block)
    return Arrival(request.time, prompt, output, request.namespace, path.tolist(), asked, answer)


def adapted(trace: Trace, seconds: float, load: float, copies: int) -> Trace:
    """The first ``seconds`` (0: all) of ``copies`` of the trace, with all times divided by ``load``."""
    found = trace
    if seconds:
        found = _derived(found, partial(_first, trace, seconds), None)
    if copies > 1:
        found = _copied(found, copies)
    if load != 1:
        found = _derived(found, partial(_sped_up, found, load), found.count)
    return found


def _derived(trace: Trace, source: partial[Iterator[Request]], count: int | None) -> Trace:
    return Trace(trace.name, source, trace.symbol_tokens, trace.whole, count)


def _first(trace: Trace, seconds: float) -> Iterator[Request]:
    end = None
    for request in trace:
        end = request.time + seconds if end is None else end
        if request.time >= end:
            return
        yield request


def _sped_up(trace: Trace, load: float) -> Iterator[Request]:
    for request in trace:
        yield _changed(request, request.time / load, request.tokens)


def _changed(request: Request, time: float, tokens: Int32Array) -> Request:
    return Request(time, tokens, request.output, request.namespace, request.session, request.generated)


def _copied(trace: Trace, copies: int) -> Trace:
    if trace.symbol_tokens == 1:
        raise ArgumentError(
            "[simulate] copy_per: got a trace of tokens, allowed where a symbol is a block (write_mooncake makes these)"
        )
    requests = list(trace)
    names, counts = np.unique(np.concatenate([NO_TOKENS, *(each.tokens for each in requests)]), return_counts=True)
    if len(names) * copies > LARGEST:
        raise ArgumentError(f"[simulate] copies: got {copies}, allowed {LARGEST // len(names)}: ids have 31 bits")
    ids = [np.searchsorted(names, each.tokens).astype(np.int32) for each in requests]
    numbered = [_changed(each, each.time, tokens) for each, tokens in zip(requests, ids)]
    own = (counts * SHARED_BY < len(requests)).astype(np.int32)
    return _derived(trace, partial(_merged, numbered, own, copies), len(requests) * copies)


def _merged(requests: list[Request], own: Int32Array, copies: int) -> Iterator[Request]:
    """``own``: 1 for each block that every copy has for itself, 0 for one that is common."""
    streams = [_copy(requests, own, number, COPIES_WITHIN * number / copies) for number in range(copies)]
    return heapq.merge(*streams, key=lambda request: request.time)


def _copy(requests: Iterable[Request], own: Int32Array, number: int, later: float) -> Iterator[Request]:
    moved = own * np.int32(number * len(own))
    for request in requests:
        yield _changed(request, request.time + later, request.tokens + moved[request.tokens])
