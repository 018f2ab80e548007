"""The offline optimum: what a cache could have reused that knew all requests beforehand.

Of all symbols it has seen so far it keeps, after each request, those whose next use is nearest (Belady 1966, with
bypass: what a request brings need not be kept at all). A prefix is always used when something below it is, so its next
use is no later; where they are equal the deeper symbol goes first. So what is kept is always whole from the root down,
as in the trie, although the rule looks at single symbols only; that makes the result a bound for every policy.

Symbols that are always used together share one *run*: a node of the radix tree over all requests at once. Only the
front of a run is kept when it does not fit as a whole.

    requests   A B C D | A B E | A B C D F      runs        [A B]--+--[C D]--[F]
                                                                   +--[E]

No request holds room while it is served, so nothing here is refused for size.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from .tokens import Int32Array
from .traces import Request


@dataclass
class _Run:
    parent: int
    start: int  # symbols above it
    symbols: Int32Array
    below: dict[int, int] = field(default_factory=dict)  # first symbol -> run
    uses: list[int] = field(default_factory=list)  # requests whose prompt has it, ascending


@dataclass(frozen=True)
class Result:
    """Symbols that were asked for, that were there, and that were evicted for want of room."""

    requested: int
    reused: int
    evicted: int


class Optimum:
    """Collects the requests of a trace; then ``result`` for as many capacities as wanted."""

    def __init__(self, whole: bool) -> None:
        self._whole = whole
        self._runs: list[_Run] = []
        self._roots: dict[str, int] = {}
        self._requests: list[tuple[int, int, int]] = []  # end of the prompt, end of all, symbols of the prompt

    def add(self, request: Request) -> None:
        tokens = request.tokens
        root = self._roots.get(request.namespace)
        if root is None:
            root = self._roots[request.namespace] = self._new(-1, 0, tokens[:0])
        prompt = self._insert(root, tokens)
        after = self._insert(prompt, request.output) if len(request.output) else prompt
        self._requests.append((prompt, after, len(tokens)))

    def result(self, capacity: int) -> Result:
        """With room for ``capacity`` symbols."""
        self._find_uses()
        return _Keeper(self._runs, capacity).run(self._requests, self._whole)

    def _new(self, parent: int, start: int, symbols: Int32Array) -> int:
        self._runs.append(_Run(parent, start, symbols.copy()))
        return len(self._runs) - 1

    # The run at whose end the symbols below `top` end.
    def _insert(self, top: int, symbols: Int32Array) -> int:
        at = 0
        while at < len(symbols):
            here = self._runs[top]
            child = here.below.get(int(symbols[at]))
            if child is None:
                here.below[int(symbols[at])] = fresh = self._new(top, here.start + len(here.symbols), symbols[at:])
                return fresh
            known = self._runs[child].symbols
            common = _common(known, symbols[at:])
            top = child if common == len(known) else self._split(child, common)
            at += common
        return top

    # Cuts a run in two: it stays the lower part, the new upper one is returned.
    def _split(self, lower: int, at: int) -> int:
        node = self._runs[lower]
        upper = self._new(node.parent, node.start, node.symbols[:at])
        self._runs[node.parent].below[int(node.symbols[0])] = upper
        node.parent, node.start, node.symbols = upper, node.start + at, node.symbols[at:].copy()
        self._runs[upper].below[int(node.symbols[0])] = lower
        return upper

    def _find_uses(self) -> None:
        for run in self._runs:
            run.uses.clear()
        for index, (prompt, _, _) in enumerate(self._requests):
            while prompt >= 0:
                self._runs[prompt].uses.append(index)
                prompt = self._runs[prompt].parent


class _Keeper:
    """One replay: how much of the front of each run is kept, and which one goes next."""

    def __init__(self, runs: list[_Run], capacity: int) -> None:
        self._runs = runs
        self._capacity = capacity
        self._kept = [0] * len(runs)
        self._used = [0] * len(runs)  # uses that have passed
        self._next = [-1] * len(runs)  # of what is kept
        self._total = 0
        self._evicted = 0
        self._farthest: list[tuple[int, int, int]] = []  # (-next use, -start, run), out of date where they differ

    def run(self, requests: list[tuple[int, int, int]], whole: bool) -> Result:
        requested = reused = 0
        for index, (prompt, after, length) in enumerate(requests):
            found = self._there(prompt)
            requested += length
            reused += min(found, length if whole else length - 1)
            self._take(after, index)
            self._make_room()
        return Result(requested, reused, self._evicted)

    def _path(self, end: int) -> list[int]:
        path = []
        while end >= 0:
            path.append(end)
            end = self._runs[end].parent
        return path[::-1]

    def _there(self, prompt: int) -> int:
        found = 0
        for run in self._path(prompt):
            found += self._kept[run]
            if self._kept[run] < len(self._runs[run].symbols):
                break
        return found

    def _take(self, after: int, index: int) -> None:
        for number in self._path(after):
            run = self._runs[number]
            uses, at = run.uses, self._used[number]
            if at < len(uses) and uses[at] == index:
                at = self._used[number] = at + 1
            length = len(run.symbols)
            if at == len(uses):  # never again
                self._total -= self._kept[number]
                self._kept[number] = 0
                self._next[number] = -1
                continue
            self._total += length - self._kept[number]
            self._kept[number] = length
            self._next[number] = uses[at]
            heapq.heappush(self._farthest, (-uses[at], -run.start, number))

    def _make_room(self) -> None:
        while self._total > self._capacity:
            after, _, number = self._farthest[0]
            if self._kept[number] == 0 or self._next[number] != -after:
                heapq.heappop(self._farthest)
                continue
            cut = min(self._kept[number], self._total - self._capacity)
            self._kept[number] -= cut
            self._total -= cut
            self._evicted += cut


def _common(a: Int32Array, b: Int32Array) -> int:
    """Length of the common prefix."""
    length = min(len(a), len(b))
    different = a[:length] != b[:length]
    first = int(different.argmax()) if length else 0
    return first if length and different[first] else length
