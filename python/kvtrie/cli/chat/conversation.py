"""A conversation with its branches: what was said, without a model, a cache or a terminal.

    conversation = Conversation("Be brief.")
    turn, _ = conversation.add(None, "Hello", "Hi.")
    conversation.branch("other")
    conversation.add(turn, "Hello again", "Yes?")

Turns form a tree. A branch is a name for the last turn of one line through it, None where nothing was said yet; every
turn lies on a branch, so nothing that was said can get out of reach but by :meth:`undo` and :meth:`delete`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import kvtrie as kv

Message = dict[str, str]

FIRST_BRANCH = "main"


@dataclass(frozen=True, eq=False)
class Turn:
    """A question and its answer, after ``parent``. Two turns are the same only if they are one object.

    ``tokens``: those of the answer as the model chose them; empty where that is not known.
    """

    parent: Turn | None
    question: str
    answer: str
    tokens: tuple[int, ...] = field(default=(), repr=False)

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
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]


def messages_of(system: str, turns: Sequence[Turn]) -> list[Message]:
    """What a chat template takes."""
    first = [{"role": "system", "content": system}] if system else []
    return first + [message for turn in turns for message in turn.messages]


class Conversation:
    """``system``: a message before all turns, or "". ``current``: the name of the branch that goes on."""

    def __init__(self, system: str = "") -> None:
        self.system = system
        self.branches: dict[str, Turn | None] = {FIRST_BRANCH: None}
        self.current = FIRST_BRANCH

    @property
    def tip(self) -> Turn | None:
        """The last turn of the current branch."""
        return self.branches[self.current]

    @property
    def turns(self) -> list[Turn]:
        """Those of the current branch, the first one first."""
        return line_of(self.tip)

    def turn(self, number: int | None = None) -> Turn:
        """The current branch's turn of that number, from 1; the last one for None."""
        turns = self.turns
        number = len(turns) if number is None else number
        if not 1 <= number <= len(turns):
            raise kv.ArgumentError(f"[chat] question: got {number}, allowed {_up_to(len(turns))} in this branch")
        return turns[number - 1]

    def add(self, parent: Turn | None, question: str, answer: str, tokens: Sequence[int] = ()) -> tuple[Turn, str]:
        """A new turn after ``parent``, with which the current branch ends from now on.

        Where that leaves turns that are on no other branch, they get one; its name is the second result, else "".
        """
        before = self.tip
        turn = Turn(parent, question, answer, tuple(tokens))
        aside = ""
        self.branches[self.current] = turn
        if before is not None and before is not parent and not self._is_on_a_branch(before):
            aside = self._free_name(f"{self.current}.")
            self.branches[aside] = before
        return turn, aside

    def undo(self) -> Turn:
        """The current branch without its last turn, which is returned."""
        turn = self.turn()
        self.branches[self.current] = turn.parent
        return turn

    def branch(self, name: str = "") -> str:
        """A new branch that ends where the current one does, and goes on; without a name it gets one."""
        name = name or self._free_name("branch")
        if not name.isprintable() or any(map(str.isspace, name)):
            raise kv.ArgumentError(f"[chat] branch: got {name!r}, allowed a name without blanks")
        if name in self.branches:
            raise kv.ArgumentError(f"[chat] branch: got {name!r}, allowed a new name; /switch {name} goes there")
        self.branches[name] = self.tip
        self.current = name
        return name

    def switch(self, name: str) -> None:
        self._require(name)
        self.current = name

    def delete(self, name: str) -> None:
        """Forgets a branch other than the current one, with the turns that are on no other."""
        self._require(name)
        if name == self.current:
            raise kv.ArgumentError(f"[chat] branch: got {name!r}, the current one, allowed another one")
        del self.branches[name]

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

    def _is_on_a_branch(self, turn: Turn) -> bool:
        return any(turn in line_of(tip) for tip in self.branches.values())

    def _free_name(self, start: str) -> str:
        return next(name for name in _numbered(start) if name not in self.branches)

    def _require(self, name: str) -> None:
        if name not in self.branches:
            raise kv.ArgumentError(f"[chat] branch: got {name!r}, allowed {', '.join(self.branches)}")


def line_of(tip: Turn | None) -> list[Turn]:
    return [] if tip is None else tip.line()


def _numbered(start: str) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"{start}{number}"


def _up_to(count: int) -> str:
    return {0: "none: nothing was asked yet", 1: "1"}.get(count, f"1 to {count}")
