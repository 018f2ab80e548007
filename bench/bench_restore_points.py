"""Where should restore points stand: every so many tokens, where messages end, or where earlier prompts parted?

A model with recurrent layers and slots for so many states; cells for everything, so that only states are short.
Counted are tokens that were known and had to be computed again all the same. Nothing is computed: the tree, the points
and their eviction are real.

    day        the day of chats of workload.py: next turns, returns, edited texts, answers asked for again
    histories  chats that arrive whole, 4 to 12 turns in one prompt, as after a restart or from another server; then an
               earlier text of one of the last ten is edited
    forms      documents of three fixed texts with fields in them; then a field of one of the last ten is edited
    trace      a file in Mooncake's format (``--trace``), its blocks as 16 symbols of 32 tokens: where a prompt parts
               inside a block is not known, so every 512 tokens there is a state just where it does

    every N    states every so many tokens
    ends       where messages end, or fields begin, as the caller says
    depths     as many as every 512 would be, by a dynamic program over the depths of earlier partings (partings.py)
    contexts   behind tokens that stood before two earlier partings, which a cache finds by itself
               (csrc/tree/partings.h); not so in the other columns
    hindsight  those that are needed next, of all that could be made (partings.py)

Beside ends, depths and contexts there is a state every 512 tokens where none of them is within 256.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kvtrie import _core, replay
from partings import Depths, hindsight
from report import Report, Rows, arguments
from workload import ANSWER, SYSTEM_LENGTHS, TEXT, Day, Random

CHATS = 200
VOCABULARY = 4096
CELLS = 1 << 23
SLOTS = (256, 512, 1024, 2048, 4096)
COLUMNS = ("every 512", "every 64", "ends", "depths", "contexts", "hindsight")
EDITS = 4  # of each history
LATEST = 10  # histories or forms of which one is edited
FORMS, FIELDS, EDITS_OF_FORM = 3, 12, 2
FIXED, FIELD = (60, 400), (8, 60)  # tokens between fields, and of a field
BLOCK, SYMBOL = 16, 32  # symbols of a trace's block, and tokens of one


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


def words(random: Random, count: int) -> list[int]:
    return [2 + random.below(VOCABULARY - 2) for _ in range(count)]


def histories(chats: int, seed: int) -> Iterator[Prompt]:
    """Chats that arrive whole, and edits of earlier texts in the latest of them."""
    random = Random(seed)

    system = words(random, SYSTEM_LENGTHS[0])
    known: list[tuple[list[int], list[int]]] = []  # tokens and ends of each
    for _ in range(chats):
        tokens, ends = list(system), [len(system)]
        for _ in range(4 + random.below(9)):
            for lengths in (TEXT, ANSWER):
                tokens += words(random, random.length(*lengths))
                ends.append(len(tokens))
        known.append((tokens, ends))
        yield Prompt(tokens, words(random, random.length(*ANSWER)), tuple(ends))
        for _ in range(EDITS):
            old, marks = known[-1 - random.below(min(LATEST, len(known)))]
            turn = 2 * random.below(len(marks) // 2)
            edited = old[: marks[turn] + random.below(8)] + words(random, random.length(*TEXT))
            yield Prompt(edited, words(random, random.length(*ANSWER)), (*marks[: turn + 1], len(edited)))


def forms(documents: int, seed: int) -> Iterator[Prompt]:
    """Documents that fill the fields of a fixed text, and edits of fields in the latest of them."""
    random = Random(seed)

    def filled(length: int) -> list[int]:  # a quarter shorter to a quarter longer
        return words(random, length - length // 4 + random.below(length // 2 + 1))

    def prompt(form: list[tuple[list[int], int]], fields: list[list[int]]) -> Prompt:
        tokens, ends = [], []
        for (text, _), value in zip(form, fields, strict=True):
            tokens += text
            ends.append(len(tokens))
            tokens += value
        return Prompt(tokens, words(random, random.length(*ANSWER)), ends)

    made = [
        [(words(random, random.length(*FIXED)), random.length(*FIELD)) for _ in range(FIELDS)] for _ in range(FORMS)
    ]
    known: list[tuple[list[tuple[list[int], int]], list[list[int]]]] = []
    for number in range(documents * FORMS):
        form = made[number % FORMS]
        known.append((form, [filled(length) for _, length in form]))
        yield prompt(*known[-1])
        for _ in range(EDITS_OF_FORM):
            form, fields = known[-1 - random.below(min(LATEST, len(known)))]
            place = random.below(FIELDS)
            yield prompt(form, [*fields[:place], filled(form[place][1]), *fields[place + 1 :]])


def trace(path: Path, most: int) -> Iterator[Prompt]:
    """The first requests of a trace; answers are new."""
    made = 1 << 30
    for request in itertools.islice(replay.read_mooncake(path), most):
        symbols = [block * BLOCK + place for block in request.tokens.tolist() for place in range(BLOCK)]
        answer = max(1, request.generated // SYMBOL)
        yield Prompt(symbols, list(range(made, made + answer)), ())
        made += answer


class Workload(NamedTuple):
    """Prompts, how much of each was known when it came, and where states of it would stand."""

    prompts: list[Prompt]
    known: list[int]
    placed: dict[str, list[Sequence[int]]]
    every: int = 512  # symbols


def workload(prompts: Iterable[Prompt], every: int = 512, step: int = 16) -> Workload:
    """With what each way of placing makes of it, one request after the other. ``step``: symbols of a bin of depths."""
    made = Workload([], [], {"ends": [], "depths": []}, every)
    tree, depths = _core.Replay(CELLS), Depths(every, step)
    for prompt in prompts:
        tokens, last = prompt.tokens, len(prompt.tokens) - 1
        known = min(tree.serve(tokens, prompt.answer)[1], last)
        made.prompts.append(prompt)
        made.known.append(known)
        made.placed["ends"].append(prompt.ends)
        made.placed["depths"].append(depths.place(known, last))
        if known > 0:
            depths.learn(known)
    return made


def again(load: Workload, slots: int, every: int, placed: str = "", contexts: bool = False) -> int:
    """Known tokens that were computed again."""
    tree, total = _core.Replay(CELLS, slots=slots, checkpoint_every=every, find_partings=contexts), 0
    ends = load.placed[placed] if placed else [()] * len(load.prompts)
    for prompt, known, here in zip(load.prompts, load.known, ends, strict=True):
        total += known - tree.serve(prompt.tokens, prompt.answer, message_ends=here)[2]
    return total


def measured(load: Workload, slots: int) -> dict[str, int]:
    """Known tokens that were computed again, by where states are kept."""
    made = {f"every {512 // part}": again(load, slots, load.every // part) for part in (1, 8)}
    made |= {name: again(load, slots, load.every, name) for name in load.placed}
    made["contexts"] = again(load, slots, load.every, contexts=True)
    made["hindsight"] = hindsight(load.prompts, load.known, slots)
    return made


def workloads(options: argparse.Namespace) -> Iterator[tuple[str, Workload, int]]:
    """Each with its name, and the tokens of a symbol."""
    for name, prompts in (("day", day), ("histories", histories), ("forms", forms)):
        yield name, workload(prompts(options.chats, options.seed)), 1
    if options.trace is not None:
        yield "trace", workload(trace(options.trace, options.requests), BLOCK, BLOCK), SYMBOL


def main() -> None:
    """Print a row for each workload and number of slots."""
    parser = arguments(__doc__)
    parser.add_argument("--chats", type=int, default=CHATS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--requests", type=int, default=12_031, help="of the trace")
    options = parser.parse_args()
    report = Report(f"known tokens computed again in {options.chats} chats, by restore points", options.json)
    report.note(f"{'':10}{'slots':>6}" + "".join(f"{name:>13}" for name in COLUMNS))
    for name, load, symbol in workloads(options):
        for slots in SLOTS:
            sums = {column: count * symbol for column, count in measured(load, slots).items()}
            report.row(
                f"{name:10}{slots:>6}" + "".join(f"{sums[column]:>13,}" for column in COLUMNS),
                workload=name,
                slots=slots,
                again=sums,
            )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """A line for each way and workload, over the slots."""
    for style, name in zip(("-", "--", ":", "-."), dict.fromkeys(row["workload"] for row in rows), strict=False):
        own = [row for row in rows if row["workload"] == name]
        slots = [row["slots"] for row in own]
        for colour, column in enumerate(COLUMNS):
            counts = [max(1, row["again"][column]) for row in own]
            axes.plot(slots, counts, f"o{style}", color=f"C{colour}", label=f"{name}, {column}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(slots, [str(each) for each in slots])
    axes.set(xlabel="slots for states", ylabel="known tokens computed again")
    axes.legend(fontsize=6, ncols=3)


if __name__ == "__main__":
    main()
