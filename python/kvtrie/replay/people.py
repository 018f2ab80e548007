"""The people of a synthetic trace: people who chat, agents with helpers, and sweeps.

Each keeps the *segments* of its own history, (seed, from, count) of pseudo-token streams, because a client that changes
something near the front sends all that follows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from .draws import Draws, Lengths, Zipf
from .token_trace import Record
from .tokens import seed_of

if TYPE_CHECKING:
    from .parameters import Workload

Segment = tuple[int, int, int]
CLOCK_TOKENS = 12


class Planned(Protocol):
    """Something that acts at a time, and then plans who acts when."""

    def act(self, now: int) -> Iterator[Record]: ...

    def follow(self, now: int) -> Iterable[tuple[int, Planned]]: ...


class Shared:
    """The common part of sessions: prompts, examples and documents, by tenant and rank."""

    def __init__(self, wanted: Workload) -> None:
        self.wanted = wanted
        self._prompts = Zipf(wanted.prompts)
        self._examples = Zipf(wanted.examples)
        self._documents = Zipf(wanted.documents)

    def opening(self, draws: Draws, tenant: int) -> list[Segment]:
        """The segments that a new session begins with."""
        wanted = self.wanted
        prompt = self._prompts.draw(draws)
        found = [self._segment("prompt", tenant, prompt, wanted.prompt)]
        example = self._examples.draw(draws)
        if example is not None:
            found.append(self._segment("example", tenant, example, wanted.example))
        if wanted.read and draws.chance(wanted.read):
            document = self._documents.draw(draws)
            if document is not None:
                found.append(self._segment("document", tenant, document, wanted.document))
        return found

    def _segment(self, kind: str, tenant: int, rank: int | None, lengths: Lengths) -> Segment:
        name = (self.wanted.seed, kind, tenant, rank)
        return seed_of(*name), 0, Draws(*name).lengths(lengths)


class Client:
    """A session's name, segments and draws, and the operations that a turn is made of."""

    def __init__(self, shared: Shared, name: str) -> None:
        self.wanted = shared.wanted
        self.draws = Draws(self.wanted.seed, name)
        self.name = name
        self.tenant = self.draws.below(self.wanted.tenants)
        self.segments: list[Segment] = []
        self._streams = 0

    @property
    def length(self) -> int:
        return sum(count for _, _, count in self.segments)

    def fresh(self, count: int) -> Segment:
        """A segment that nobody else has."""
        self._streams += 1
        return seed_of(self.wanted.seed, self.name, self._streams), 0, count

    def append(self, segments: Iterable[Segment]) -> list[object]:
        added = list(segments)
        self.segments += added
        return [["append", spec_of(segment)] for segment in added]

    def generate(self) -> list[object]:
        segment = self.fresh(self.draws.lengths(self.wanted.output))
        self.segments.append(segment)
        return [["generate", spec_of(segment)]]

    def rollback(self, to: int) -> list[object]:
        self.segments, _ = cut(self.segments, to)
        return [["rollback", to]]

    def record(self, now: int, ops: list[object], **more: object) -> Record:
        return {"t": now / 1000, "session": self.name, **more, "ops": ops}

    def later(self, now: int) -> int:
        return now + self.draws.lengths(self.wanted.think)


class Person(Client):
    """A chat: opening, questions, now and then an edit, several answers, a clock, a limit."""

    def __init__(self, index: int, shared: Shared) -> None:
        super().__init__(shared, f"s{index}")
        self._shared = shared
        self._opening = 0  # tokens that are never edited or cut off, the clock's included
        self._clock_at = 0  # tokens before the clock
        self._asked = 0  # tokens before the last answer
        self._left = 1 + self.draws.geometric(self.wanted.more)
        self._turns = 0

    def act(self, now: int) -> Iterator[Record]:
        ops = self._question(now) if self.segments else self._open(now)
        self._asked = self.length
        self._turns += 1
        twins = self._twins()
        ops += self.generate()
        self._left -= 1
        if self._left == 0 and not twins:
            ops.append(["end"])
        yield self.record(now, ops, namespace=f"tenant{self.tenant}")
        for number in range(twins):
            name = f"{self.name}.{self._turns}.{number}"
            spec = spec_of((seed_of(self.wanted.seed, name), 0, self.draws.lengths(self.wanted.output)))
            answer = [["branch", self._asked], ["generate", spec], ["end"]]
            yield {"t": now / 1000, "session": name, "parent": self.name, "ops": answer}
        if self._left == 0 and twins:
            yield self.record(now, [["end"]])

    def follow(self, now: int) -> Iterable[tuple[int, Planned]]:
        return [(self.later(now), self)] if self._left else []

    def _open(self, now: int) -> list[object]:
        opening = self._shared.opening(self.draws, self.tenant)
        ops = self.append(self._with_clock(opening, now))
        self._opening = self.length
        return ops + self.append([self.fresh(self.draws.lengths(self.wanted.first))])

    def _question(self, now: int) -> list[object]:
        ops: list[object] = []
        choice = self.draws.below(1000)
        question = [self.fresh(self.draws.lengths(self.wanted.growth))]
        if choice < self.wanted.edit:
            ops += self.rollback(self._opening + self.draws.below(self.length - self._opening))
        elif choice < self.wanted.edit + self.wanted.again:
            ops += self.rollback(self._asked)
            question = []
        return ops + self.append(question) + self._rewritten(now)

    # The tokens that the client sends again because of the clock and the limit.
    def _rewritten(self, now: int) -> list[object]:
        wanted = self.wanted
        keep = self._clock_at if wanted.clock_at else self._opening
        head, tail = cut(self.segments, keep)
        if wanted.clock_at:
            tail = [self._clock(now), *cut(tail, CLOCK_TOKENS)[1]]
        excess = self.length - wanted.limit
        if wanted.limit and excess > 0:
            kept, rest = cut(tail, self._opening - keep)
            tail = [*kept, *cut(rest, min(excess, sum(each[2] for each in rest) - 1))[1]]
        elif not wanted.clock_at:
            return []
        self.segments = head
        return [["rollback", keep], *self.append(tail)]

    def _with_clock(self, opening: list[Segment], now: int) -> list[Segment]:
        if not self.wanted.clock_at:
            return opening
        head, tail = cut(opening, self.wanted.clock_at)
        self._clock_at = sum(count for _, _, count in head)
        return [*head, self._clock(now), *tail]

    def _clock(self, now: int) -> Segment:
        return seed_of(self.wanted.seed, "clock", now), 0, CLOCK_TOKENS

    def _twins(self) -> int:
        return self.wanted.samples - 1 if self.draws.chance(self.wanted.sampled) else 0


class Agent(Client):
    """Many short turns on a long common prompt; at some of them helpers branch off, and what they find is appended."""

    def __init__(self, index: int, shared: Shared, name: str = "", level: int = 0) -> None:
        super().__init__(shared, name or f"a{index}")
        self._shared = shared
        self._index = index
        self._level = level
        self._left = self.wanted.turns if level == 0 else 1 + self.draws.geometric(self.wanted.more)
        self._helpers: list[Agent] = []
        self._bursts = 0

    def act(self, now: int) -> Iterator[Record]:
        ops: list[object] = []
        more: dict[str, object] = {}
        if not self.segments:
            more["namespace"] = f"tenant{self.tenant}"
            ops += self.append(self._shared.opening(self.draws, self.tenant))
            ops += self.append([self.fresh(self.draws.lengths(self.wanted.first))])
        else:
            ops += self.append([self.fresh(self.draws.lengths(self.wanted.growth))])
        yield from self._turn(now, ops, more)

    def follow(self, now: int) -> Iterable[tuple[int, Planned]]:
        for helper in self._helpers:
            yield from helper.follow(now)
        self._helpers = []
        if self._left:
            yield self.later(now), self

    def _turn(self, now: int, ops: list[object], more: dict[str, object]) -> Iterator[Record]:
        ops += self.generate()
        self._left -= 1
        burst = self._level < self.wanted.depth and self.draws.chance(self.wanted.burst)
        if self._left == 0 and not burst:
            ops.append(["end"])
        yield self.record(now, ops, **more)
        if burst:
            yield from self._send_helpers(now)
            if self._left == 0:
                yield self.record(now, [["end"]])

    def _send_helpers(self, now: int) -> Iterator[Record]:
        self._bursts += 1
        for number in range(self.wanted.width):
            name = f"{self.name}.{self._bursts}.{number}"
            helper = Agent(self._index, self._shared, name, self._level + 1)
            at = self.length
            helper.segments = list(self.segments)
            task = helper.append([helper.fresh(helper.draws.lengths(self.wanted.growth))])
            self._helpers.append(helper)
            yield from helper._turn(now, [["branch", at], *task], {"parent": self.name})


class Sweep(Client):
    """One document that is read once: one request, never again."""

    def __init__(self, index: int, shared: Shared) -> None:
        super().__init__(shared, f"sweep{index}")

    def act(self, now: int) -> Iterator[Record]:
        ops = self.append([self.fresh(self.draws.lengths(self.wanted.document))])
        yield self.record(now, [*ops, *self.generate(), ["end"]], namespace=f"tenant{self.tenant}")

    def follow(self, now: int) -> Iterable[tuple[int, Planned]]:  # noqa: ARG002
        return []


def spec_of(segment: Segment) -> dict[str, int]:
    """A segment as a token spec of token_trace.py."""
    seed, start, count = segment
    return {"seed": seed, "n": count, **({"from": start} if start else {})}


def cut(segments: list[Segment], at: int) -> tuple[list[Segment], list[Segment]]:
    """The first ``at`` tokens, and the rest."""
    head: list[Segment] = []
    for index, (seed, start, count) in enumerate(segments):
        if at < count:
            rest = [(seed, start + at, count - at), *segments[index + 1 :]]
            return ([*head, (seed, start, at)] if at else head), rest
        head.append((seed, start, count))
        at -= count
    return head, []
