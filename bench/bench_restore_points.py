"""Where should restore points stand: every so many tokens, or where the messages of a chat end?

A model with recurrent layers and slots for so many states; cells for everything, so that only states are short.
Counted are tokens that were known and had to be computed again all the same. Nothing is computed: the tree, the points
and their eviction are real.

    day        the day of chats of workload.py: next turns, returns, edited texts, answers asked for again
    histories  chats that arrive whole, 4 to 12 turns in one prompt, as after a restart or from another server; then an
               earlier text of one of the last ten is edited
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvtrie import _core
from report import Report, Rows, arguments
from workload import ANSWER, SYSTEM_LENGTHS, TEXT, Day, Random

CHATS = 200
VOCABULARY = 4096
CELLS = 1 << 23
SLOTS = (256, 512, 1024, 2048, 4096)
SPACINGS = (512, 128, 64)  # tokens between spaced points; the first also with the ends of messages
EDITS = 4  # of each history
LATEST = 10  # histories of which one is edited


class Prompt(NamedTuple):
    """``ends``: lengths at which its messages end."""

    tokens: list[int]
    answer: list[int]
    ends: Sequence[int]


def day(chats: int, seed: int) -> Iterator[Prompt]:
    """The prompts of a day that sees so many conversations."""
    made, count = Day(seed, VOCABULARY), 0
    while not made.lines or made.lines[-1].conversation < chats:
        request = made.next()
        answer = [2 + (count * 31 + place) % (VOCABULARY - 2) for place in range(request.answer_length)]
        yield Prompt(request.prompt, answer, tuple(made.lines[request.line].ends))
        made.answer(answer)
        count += 1


def histories(chats: int, seed: int) -> Iterator[Prompt]:
    """Chats that arrive whole, and edits of earlier texts in the latest of them."""
    random = Random(seed)

    def words(count: int) -> list[int]:
        return [2 + random.below(VOCABULARY - 2) for _ in range(count)]

    system = words(SYSTEM_LENGTHS[0])
    known: list[tuple[list[int], list[int]]] = []  # tokens and ends of each
    for _ in range(chats):
        tokens, ends = list(system), [len(system)]
        for _ in range(4 + random.below(9)):
            for lengths in (TEXT, ANSWER):
                tokens += words(random.length(*lengths))
                ends.append(len(tokens))
        known.append((tokens, ends))
        yield Prompt(tokens, words(random.length(*ANSWER)), tuple(ends))
        for _ in range(EDITS):
            old, marks = known[-1 - random.below(min(LATEST, len(known)))]
            turn = 2 * random.below(len(marks) // 2)
            edited = old[: marks[turn] + random.below(8)] + words(random.length(*TEXT))
            yield Prompt(edited, words(random.length(*ANSWER)), (*marks[: turn + 1], len(edited)))


def again(prompts: Iterator[Prompt], slots: int, every: int, with_ends: bool) -> int:
    """Known tokens that were computed again."""
    replay, total = _core.Replay(CELLS, slots=slots, checkpoint_every=every), 0
    for prompt in prompts:
        ends = prompt.ends if with_ends else ()
        _, matched, reused = replay.serve(prompt.tokens, prompt.answer, message_ends=ends)
        total += min(matched, len(prompt.tokens) - 1) - reused
    return total


def main() -> None:
    """Print a row for each workload and number of slots, and what the ends of messages save."""
    parser = arguments(__doc__)
    parser.add_argument("--chats", type=int, default=CHATS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(f"known tokens computed again in {options.chats} chats, by restore points", options.json)
    report.note(
        f"{'':12}{'slots':>6}" + "".join(f"{f'every {every}':>12}" for every in SPACINGS) + "        ends   saved"
    )
    for name, workload in (("day", day), ("histories", histories)):
        for slots in SLOTS:
            made = {every: again(workload(options.chats, options.seed), slots, every, False) for every in SPACINGS}
            ends = again(workload(options.chats, options.seed), slots, SPACINGS[0], True)
            saved = 1 - ends / made[SPACINGS[0]]
            report.row(
                f"{name:12}{slots:>6}"
                + "".join(f"{sums:>12,}" for sums in made.values())
                + f"{ends:>12,}{saved:>8.0%}",
                workload=name,
                slots=slots,
                again={str(every): sums for every, sums in made.items()},
                ends=ends,
                saved=round(saved, 3),
            )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """A line for each way and workload, over the slots."""
    for name, style in (("day", "-"), ("histories", "--")):
        own = [row for row in rows if row["workload"] == name]
        slots = [row["slots"] for row in own]
        for colour, every in enumerate(own[0]["again"]):
            label = f"{name}, every {every}"
            axes.plot(slots, [row["again"][every] for row in own], f"o{style}", color=f"C{colour}", label=label)
        axes.plot(slots, [row["ends"] for row in own], f"s{style}", color="C3", label=f"{name}, ends of messages")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(slots, [str(each) for each in slots])
    axes.set(xlabel="slots for states", ylabel="known tokens computed again")
    axes.legend(fontsize=8, ncols=2)


if __name__ == "__main__":
    main()
