"""A few of many replicas for a prompt, so that choosing takes no longer with 1,000 of them than with ten.

A policy weighs every replica that it is given, in about 8 us each. An *index* has, for each fingerprint of any
summary, the replicas whose summary has it. A *shortlist* takes the prompt's fingerprints from the deepest on, and of
the replicas that have them as many as make half of it; the router's own last choice for a fingerprint counts as one of
them before the next summaries tell. The other half are drawn from all, so that load goes where nothing is known, too.

    prompt's fingerprints, from the deepest     f5: -    f4: r7    f3: r7 r2    f2: r7 r2 r9 ...
    shortlist of 6                              r7 r2 r9, and 3 that are drawn

Cost: O(fingerprints of the prompt + size) for each prompt, O(what changed) for each summary. Threads: none of its own;
an index and its shortlists belong to one thread.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Generic, NamedTuple

from .routing import REMEMBERED, Id, Prompt


class _Held(NamedTuple):
    """The fingerprints that an index has a replica by: these for certain, and at most those."""

    certain: frozenset[int]
    possible: frozenset[int]


_NOTHING = _Held(frozenset(), frozenset())


class Index(Generic[Id]):
    """Which replicas have a fingerprint in their last summary.

    A summary that takes another one's place changes many entries. A possible change is noted before it is made, and a
    finished one after, so that the next summary sets right what an exception left in between.
    """

    def __init__(self) -> None:
        self._holders: dict[int, dict[Id, None]] = {}
        self._held: dict[Id, _Held] = {}

    def turn(self, replica: Id, now: frozenset[int]) -> None:
        """A replica's summary has taken the place of the one before; an empty one where it is gone."""
        held = self._held.get(replica, _NOTHING)
        self._held[replica] = _Held(held.certain & now, held.possible | now)
        for each in held.possible - now:
            self._drop(each, replica)
        for each in now - held.certain:
            self._holders.setdefault(each, {})[replica] = None
        if now:
            self._held[replica] = _Held(now, now)
        else:
            del self._held[replica]

    def holders(self, fingerprint: int) -> Collection[Id]:
        """In the order in which they came to have it."""
        return self._holders.get(fingerprint, {}).keys()

    def _drop(self, fingerprint: int, replica: Id) -> None:
        holders = self._holders.get(fingerprint, {})
        holders.pop(replica, None)
        if not holders:
            self._holders.pop(fingerprint, None)


class Shortlist(Generic[Id]):
    """Of one router. ``size``: replicas on a list, at least 2."""

    def __init__(self, index: Index[Id], size: int, seed: int | None = None) -> None:
        self._index = index
        self._size = size
        self._dice = random.Random(seed)
        self._sent: OrderedDict[int, Id] = OrderedDict()

    def of(self, prompt: Prompt, replicas: Sequence[Id]) -> list[Id]:
        """Some of ``replicas``, each once: those that know most of the prompt first. They may be gone."""
        found: dict[Id, None] = {}
        for each in reversed(prompt.fingerprints):
            if each in self._sent:
                found[self._sent[each]] = None
            self._add(found, self._index.holders(each), self._size // 2 - len(found))
            if len(found) >= self._size // 2:
                break
        count = min(self._size, len(replicas))
        drawn = self._dice.sample(replicas, count)
        return [*found, *[each for each in drawn if each not in found]][: max(count, len(found))]

    def sent(self, prompt: Prompt, replica: Id) -> None:
        """A prompt went there."""
        for each in prompt.fingerprints:
            self._sent[each] = replica
            self._sent.move_to_end(each)
        while len(self._sent) > 16 * REMEMBERED:
            self._sent.popitem(last=False)

    def _add(self, found: dict[Id, None], holders: Collection[Id], room: int) -> None:
        new = [each for each in holders if each not in found]
        if len(new) > room > 0:
            new = self._dice.sample(new, room)
        for each in new[: max(room, 0)]:
            found[each] = None
