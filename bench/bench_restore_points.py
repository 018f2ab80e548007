"""Where should restore points stand: every so many tokens, or where the messages of a chat end?

The day of chats of workload.py until it has seen 200 conversations: next turns, returns, edits, answers asked for
again. A model with recurrent layers and slots for so many states; cells for everything, so that only states are short.
The tokens that were known and had to be computed again all the same, by how far apart spaced points are, with and
without the lengths at which messages end (``message_ends``). Nothing is computed: the tree, the points and their
eviction are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtrie import _core
from report import Report, Rows, arguments
from workload import Day

CHATS = 200
VOCABULARY = 4096
CELLS = 1 << 23
SLOTS = (256, 512, 1024, 2048, 4096)
SPACINGS = (512, 256, 128, 64)  # tokens between spaced points; the first also with turns


@dataclass
class Sums:
    """Over all requests, in tokens. ``again``: known, and computed again all the same."""

    requests: int = 0
    prompts: int = 0
    known: int = 0
    again: int = 0


def play(slots: int, every: int, with_turns: bool, chats: int, seed: int) -> Sums:
    """The day on a cache with so many slots."""
    day, sums = Day(seed, VOCABULARY), Sums()
    replay = _core.Replay(CELLS, slots=slots, checkpoint_every=every)
    while not day.lines or day.lines[-1].conversation < chats:
        request = day.next()
        words = [2 + (sums.requests * 31 + place) % (VOCABULARY - 2) for place in range(request.answer_length)]
        ends = day.lines[request.line].ends if with_turns else ()
        _, matched, reused = replay.serve(request.prompt, words, message_ends=ends)
        day.answer(words)
        known = min(matched, len(request.prompt) - 1)
        sums.requests += 1
        sums.prompts += len(request.prompt)
        sums.known += known
        sums.again += known - reused
    return sums


def main() -> None:
    """Print a row for each number of slots, and what turns save."""
    parser = arguments(__doc__)
    parser.add_argument("--chats", type=int, default=CHATS)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = Report(f"known tokens computed again in a day of {options.chats} chats, by restore points", options.json)
    report.note(f"{'slots':>8}" + "".join(f"{f'every {every}':>12}" for every in SPACINGS) + f"{'turns':>12}   saved")
    for slots in SLOTS:
        spaced = {every: play(slots, every, False, options.chats, options.seed) for every in SPACINGS}
        turns = play(slots, SPACINGS[0], True, options.chats, options.seed)
        saved = 1 - turns.again / spaced[SPACINGS[0]].again
        report.row(
            f"{slots:>8}"
            + "".join(f"{sums.again:>12,}" for sums in spaced.values())
            + f"{turns.again:>12,}   {saved:.0%}",
            slots=slots,
            again={str(every): sums.again for every, sums in spaced.items()},
            turns=turns.again,
            saved=round(saved, 3),
        )
    report.note(f"{turns.requests} requests, {turns.prompts:,} tokens of prompts, {turns.known:,} of them known")
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """A line for each way, over the slots."""
    slots = [row["slots"] for row in rows]
    for every in rows[0]["again"]:
        axes.plot(slots, [row["again"][every] for row in rows], marker="o", label=f"every {every} tokens")
    axes.plot(slots, [row["message_ends"] for row in rows], marker="s", label="where messages end, else every 512")
    axes.set_xscale("log", base=2)
    axes.set_xticks(slots, [str(each) for each in slots])
    axes.set(xlabel="slots for states", ylabel="known tokens computed again", ylim=(0, None))
    axes.legend(fontsize=8)


if __name__ == "__main__":
    main()
