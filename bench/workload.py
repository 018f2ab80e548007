"""A day of chats: which prompt comes next when one person keeps several conversations open. Seeded, whole numbers only.

A *line* is one conversation as one of its branches shows it: a shared system prompt, then user texts and answers in
turns. Of a hundred requests 35 continue the line that was last in use, 35 go to another line (another conversation, or
another branch of this one), 20 change what was said (half of them edit an earlier user text, half ask for an earlier
answer once more; both leave a new branch), 10 start a new conversation.

What the user says is the same for every engine; answers are the engine's own, always of the asked length. So the
structure and the length of each prompt never depend on what an engine says, while each engine sees its own words again
in the next prompt, as it would. Prompts have about 500 to 3000 tokens.

    day = Day(seed=1, vocabulary=4096)
    request = day.next()                  # .operation, .prompt, .answer_length
    day.answer(tokens)                    # as many as were asked for
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NEXT, SWITCH, EDIT, REPEAT, NEW = "next turn", "switch", "edit", "regenerate", "new"
SHARES = {NEXT: 35, SWITCH: 35, EDIT: 10, REPEAT: 10, NEW: 10}  # of a hundred
SYSTEM_LENGTHS = (480, 700, 560, 860)  # tokens; the first is used most
TEXT = (8, 400)  # tokens of what a user says; 90 on average, half of the texts have less than 75
ANSWER = (16, 64)
LONGEST = 3000  # tokens of a prompt; a line that comes near is left alone
FIRST_WORD = 300  # smaller ids are bytes and marks
_MASK = (1 << 64) - 1


class Random:
    """splitmix64 (Steele et al. 2014)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def below(self, limit: int) -> int:
        """0 to ``limit`` - 1; uneven by less than 2**-40 for the limits used here."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        z = self._state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return (z ^ (z >> 31)) % limit

    def length(self, least: int, most: int) -> int:
        """Much like a log-normal: steps of a quarter, the step the sum of four draws; cut at ``least`` and ``most``."""
        ladder = [least]
        while ladder[-1] < most:
            ladder.append(min(most, ladder[-1] * 5 // 4 + 1))
        at = sum(self.below(256) for _ in range(4)) * len(ladder) // 1021
        above = ladder[min(at + 1, len(ladder) - 1)]
        return ladder[at] + self.below(max(1, above - ladder[at]))

    def zipf(self, count: int) -> int:
        """0 to ``count`` - 1, the i-th with weight 1 / (i + 1)."""
        weights = [5040 // (index + 1) for index in range(count)]
        at = self.below(sum(weights))
        for index, weight in enumerate(weights):
            at -= weight
            if at < 0:
                return index
        raise AssertionError


@dataclass(frozen=True)
class Request:
    """What an engine is asked. ``line``: the line it belongs to, ``source``: the one it was made from (None: new)."""

    operation: str
    prompt: list[int]
    answer_length: int
    line: int
    source: int | None


@dataclass
class Line:
    """One branch of one conversation. ``ends``: lengths of ``tokens`` after the system prompt and each text since."""

    conversation: int
    tokens: list[int]
    ends: list[int] = field(default_factory=list)

    def turns(self) -> int:
        """User texts that were answered."""
        return (len(self.ends) - 1) // 2


class Day:
    """The requests of one day, one after the other; ``answer`` must be called between them."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._random = Random(seed)
        self._vocabulary = vocabulary
        self._systems = [self._words(length) for length in SYSTEM_LENGTHS]
        self.lines: list[Line] = []
        self._conversations = 0
        self._current: int | None = None
        self._open: Request | None = None

    def next(self) -> Request:
        """The next request."""
        if self._open is not None:
            raise ValueError("[workload] next: got a request without answer, allowed after answer()")
        operation, source = self._operation()
        line = self._line(operation, source)
        if operation in (NEXT, SWITCH) and source is not None:
            index = source  # the line goes on
            self.lines[index] = line
        else:
            index = len(self.lines)
            self.lines.append(line)
        self._open = Request(operation, list(line.tokens), self._random.length(*ANSWER), index, source)
        self._current = index
        return self._open

    def answer(self, tokens: Sequence[int]) -> None:
        """What the engine said; exactly ``answer_length`` tokens."""
        request = self._open
        if request is None or len(tokens) != request.answer_length:
            raise ValueError(f"[workload] answer: got {len(tokens)} tokens, allowed as many as were asked for")
        line = self.lines[request.line]
        line.tokens.extend(map(int, tokens))
        line.ends.append(len(line.tokens))
        self._open = None

    def _operation(self) -> tuple[str, int | None]:
        """What happens, and to which line; a new conversation where it can happen to none."""
        hundred = [name for name, share in SHARES.items() for _ in range(share)]
        operation, current = hundred[self._random.below(100)], self._current
        free = [index for index, line in enumerate(self.lines) if len(line.tokens) < LONGEST - TEXT[1]]
        if operation == NEXT and current not in free:
            operation = SWITCH
        if operation == SWITCH:
            free = [index for index in free if index != current]
            return (SWITCH, self._other(free)) if free else (NEW, None)
        if operation == NEW or current is None:
            return NEW, None
        return operation, current

    def _other(self, free: list[int]) -> int:
        """One of the lines ``free``; where this conversation has branches, one of those half the time."""
        assert self._current is not None
        own = self.lines[self._current].conversation
        branches = [index for index in free if self.lines[index].conversation == own]
        if branches and self._random.below(2):
            free = branches
        return free[self._random.below(len(free))]

    def _line(self, operation: str, source: int | None) -> Line:
        """The line as the request's prompt shows it."""
        if source is None:
            self._conversations += 1
            system = self._systems[self._random.zipf(len(self._systems))]
            return self._with_text(Line(self._conversations, list(system), [len(system)]))
        old = self.lines[source]
        if operation in (NEXT, SWITCH):
            return self._with_text(Line(old.conversation, list(old.tokens), list(old.ends)))
        turn = self._random.below(old.turns())
        if operation == REPEAT:
            keep = old.ends[: 2 * turn + 2]
            return Line(old.conversation, old.tokens[: keep[-1]], keep)
        begin, end = old.ends[2 * turn], old.ends[2 * turn + 1]
        kept = begin + self._random.below(end - begin)
        return self._with_text(Line(old.conversation, old.tokens[:kept], old.ends[: 2 * turn + 1]))

    def _with_text(self, line: Line) -> Line:
        line.tokens.extend(self._words(self._random.length(*TEXT)))
        line.ends.append(len(line.tokens))
        return line

    def _words(self, count: int) -> list[int]:
        return [FIRST_WORD + self._random.below(self._vocabulary - FIRST_WORD) for _ in range(count)]
