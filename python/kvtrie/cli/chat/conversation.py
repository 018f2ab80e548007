"""A conversation with its branches: what was said, without a model, a cache or a terminal.

    conversation = Conversation("Be brief.")
    turn, _ = conversation.add(None, "Hello", "Hi.")
    conversation.branch("other")
    conversation.add(turn, "Hello again", "Yes?")

Turns form a tree. A branch is a name for the last turn of one line through it, None where nothing was said yet; every
turn lies on a branch, so nothing that was said can get out of reach but by :meth:`undo` and :meth:`delete`.

Branches and the current one's name change by one assignment, so Ctrl-C leaves what was before a call or what is after.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import kvtrie as kv

Message = dict[str, str]

FIRST_BRANCH = "main"


@dataclass(frozen=True, eq=False)
class Turn:
    """A question and its answer, after ``parent``. Two turns are the same only if they are one object.

    ``tokens``: those of the answer as the model chose them; empty where that is not known. ``reasoning``: what it says
    before the answer; "": nothing.
    """

    parent: Turn | None
    question: str
    answer: str
    tokens: tuple[int, ...] = field(default=(), repr=False)
    reasoning: str = ""

    def line(self) -> list[Turn]:
        """All turns from the first one to this."""
        found: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            found.append(turn)
            turn = turn.parent
        return found[::-1]

    @property
    def messages(self) -> list[Message]:
        """Whether reasoning comes into a later prompt is the chat template's to say."""
        said = {"reasoning_content": self.reasoning} if self.reasoning else {}
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer, **said}]


def messages_of(system: str, turns: Sequence[Turn]) -> list[Message]:
    """The messages that a chat template takes."""
    first = [{"role": "system", "content": system}] if system else []
    return first + [message for turn in turns for message in turn.messages]


class _Branches(NamedTuple):
    tips: Mapping[str, Turn | None]
    current: str


class Conversation:
    """``system``: a message before all turns, or "". ``branches``: names, each with its last turn; one of them is
    ``current``, the branch that goes on."""

    def __init__(
        self, system: str = "", branches: Mapping[str, Turn | None] | None = None, current: str = FIRST_BRANCH
    ) -> None:
        self.system = system
        self._branches = _Branches({FIRST_BRANCH: None} if branches is None else branches, current)

    @property
    def branches(self) -> Mapping[str, Turn | None]:
        return self._branches.tips

    @property
    def current(self) -> str:
        """The name of the branch that goes on."""
        return self._branches.current

    @property
    def tip(self) -> Turn | None:
        """The last turn of the current branch."""
        tips, current = self._branches
        return tips[current]

    @property
    def turns(self) -> list[Turn]:
        """The turns of the current branch, the first one first."""
        return line_of(self.tip)

    def turn(self, number: int | None = None) -> Turn:
        """The current branch's turn of that number, from 1; the last one for None."""
        turns = self.turns
        number = len(turns) if number is None else number
        if not 1 <= number <= len(turns):
            raise kv.errors.ArgumentError(f"[chat] question: got {number}, allowed {_up_to(len(turns))} in this branch")
        return turns[number - 1]

    def add(
        self, parent: Turn | None, question: str, answer: str, tokens: Sequence[int] = (), reasoning: str = ""
    ) -> tuple[Turn, str]:
        """A new turn after ``parent``, with which the current branch ends from now on: see :meth:`place`."""
        turn = Turn(parent, question, answer, tuple(tokens), reasoning)
        return turn, self.place(turn)

    def place(self, turn: Turn) -> str:
        """Lets the current branch end with ``turn``; nothing changes where it does.

        Where that leaves turns that are on no other branch, they get one; its name is the result, else "".
        """
        (tips, current), before = self._branches, self.tip
        if before is turn:
            return ""
        made, aside = {**tips, current: turn}, ""
        if before is not None and before is not turn.parent and not _is_on_a_branch(before, made):
            aside = _free_name(f"{current}.", made)
            made[aside] = before
        self._branches = _Branches(made, current)
        return aside

    def undo(self) -> Turn:
        """The current branch without its last turn, which is returned."""
        turn = self.turn()
        tips, current = self._branches
        self._branches = _Branches({**tips, current: turn.parent}, current)
        return turn

    def branch(self, name: str = "") -> str:
        """A new branch that ends where the current one does, and goes on; without a name it gets one."""
        name = name or _free_name("branch", self.branches)
        if not name.isprintable() or any(map(str.isspace, name)):
            raise kv.errors.ArgumentError(f"[chat] branch: got {name!r}, allowed a name without blanks")
        if name in self.branches:
            raise kv.errors.ArgumentError(f"[chat] branch: got {name!r}, allowed a new name; /switch {name} goes there")
        self._branches = _Branches({**self.branches, name: self.tip}, name)
        return name

    def switch(self, name: str) -> None:
        self._require(name)
        self._branches = self._branches._replace(current=name)

    def delete(self, name: str) -> None:
        """Forgets a branch other than the current one, with the turns that are on no other."""
        self._require(name)
        if name == self.current:
            raise kv.errors.ArgumentError(f"[chat] branch: got {name!r}, the current one, allowed another one")
        kept = {each: tip for each, tip in self.branches.items() if each != name}
        self._branches = self._branches._replace(tips=kept)

    def all_turns(self) -> list[Turn]:
        """Every turn once, each after its parent."""
        seen: dict[Turn, None] = {}
        for tip in self.branches.values():
            seen.update(dict.fromkeys(line_of(tip)))
        return list(seen)

    def children(self) -> dict[Turn | None, list[Turn]]:
        """The turns after each turn, and after none; the longest known first."""
        found: dict[Turn | None, list[Turn]] = {}
        for turn in self.all_turns():
            found.setdefault(turn.parent, []).append(turn)
        return found

    def names_at(self, turn: Turn | None) -> list[str]:
        """The branches that end there."""
        return [name for name, tip in self.branches.items() if tip is turn]

    def answers_to(self, turn: Turn) -> int:
        """How many answers its question has in its place."""
        return sum(each.parent is turn.parent and each.question == turn.question for each in self.all_turns())

    def _require(self, name: str) -> None:
        if name not in self.branches:
            raise kv.errors.ArgumentError(f"[chat] branch: got {name!r}, allowed {', '.join(self.branches)}")


def line_of(tip: Turn | None) -> list[Turn]:
    return [] if tip is None else tip.line()


def _is_on_a_branch(turn: Turn, tips: Mapping[str, Turn | None]) -> bool:
    return any(turn in line_of(tip) for tip in tips.values())


def _free_name(start: str, taken: Container[str]) -> str:
    return next(name for name in _numbered(start) if name not in taken)


def _numbered(start: str) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{start}{number}"


def _up_to(count: int) -> str:
    return {0: "none: nothing was asked yet", 1: "1"}.get(count, f"1 to {count}")
