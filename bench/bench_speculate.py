"""How many tokens a second with drafts, against plain decoding of the same model?

Five texts, greedy, one answer at a time and four in a batch, plain and by each drafter in turns in one run, and the
same answers:

    edits     a file of about 2,000 tokens is written once more with a name changed throughout (what comes is forced)
    repeats   an agent's step is done again: the tree has the answer of the first time
    quotes    an answer takes passages out of its prompt, with words of its own between them (what comes is forced)
    elsewhere a passage of the file is written, which only another conversation has (what comes is forced)
    chat      plain answers to short questions
    records   28 fields, each with one of three values: six earlier answers are known, each with values of its own. What
              comes is forced. Also with trees of two and three ways (kv.DraftTree), beside one
    shapes    what a step of several paths takes, against a line of as many rows
    rows      what a step of four answers takes with so many drafts, against one without, by the processor's seconds
    price     what drafters that find nothing add to a step, by the seconds of the thread that asks them, against the
              seconds that a step takes
    model     the same from the model in float32, drafted by the model in the blocks of its file (kv.DraftModel)
    four ...  four answers of these in one ``kv.Batch``, so that a step has at least four rows: edits of four parts of
              the file, and four chats

Where ``./dev peers`` has built llama.cpp, its drafters answer the first five beside ours, from the same file and with
as many threads, with flash attention or without: each of its n-gram drafters and its prompt lookup with a few settings
once (drafts_of_llama.py), the quickest of them then in turns with ours. "Same text" says whether that is what its own
plain decoding gives.

"Forced": a logits processor has the model write a given text, since one of this size edits no files. Each token is
computed, chosen and checked as ever; only which one is likeliest is given. The model is SmolLM2-135M, which
``python -m kvtrie download`` gets; with ``--small`` one of 28 M parameters and random weights, whose chat is none, and
no second one that drafts. The index of "suffix" is made, and has read what was there, before times are taken.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import drafts_of_llama
import kvtrie as kv
import random_models
import smollm2
from colours import GUIDE
from report import Report, Rows, arguments
from timing import Race, race

TOKENS = 200  # of each answer but the edit
PROMPT = {"prompt": "prompt"}
TREE = {"tree": ["tree", "prompt"]}
SUFFIX = {"suffix": "suffix"}
WAYS = {f"{ways} ways": kv.DraftTree("suffix", ways) for ways in (2, 3)}
PEERED = ("edits", "repeats", "quotes", "elsewhere", "chat 1")  # which llama.cpp answers, too
QUESTIONS = (
    "What is the capital of France, and what is it known for?",
    "Explain in a few sentences why the sky is blue.",
    "Give me a short recipe for pancakes.",
)


def forced(start: int, text: Sequence[int]) -> Callable[[Any, Any], Any]:
    """A logits processor: behind a prompt of ``start`` tokens comes ``text``."""

    def processor(tokens: Any, row: Any) -> Any:
        row[text[len(tokens) - start]] = 1e9
        return row

    return processor


class Task:
    """A prompt, and what is to come: None for what the model writes. ``drafts``: by what the table calls them.
    ``before``: another conversation."""

    def __init__(
        self,
        prompt: Sequence[int],
        text: Sequence[int] | None,
        drafts: Mapping[str, Any],
        count: int = TOKENS,
        known: Sequence[Sequence[int]] = (),
    ) -> None:
        self.prompt, self.text, self.drafts, self.known = list(prompt), text, drafts, known
        self.count = count if text is None else len(text)

    @property
    def processors(self) -> Any:
        return () if self.text is None else forced(len(self.prompt), self.text)

    def answer(self, model: Any, cache: kv.PrefixCache, draft: Any) -> kv.Generation[int]:
        """Finished; its prompt was known, so that only the answer counts."""
        processors = self.processors
        with cache.begin(self.prompt, publish=False) as session:
            made = kv.generate(model, session, self.count, ignore_eos=True, logits_processors=processors, draft=draft)
            list(made)
        return made


class Four:
    """Tasks of one batch."""

    def __init__(self, each: Sequence[Task]) -> None:
        self.each, self.drafts = each, each[0].drafts
        self.count = sum(task.count for task in each)

    def answer(self, model: Any, cache: kv.PrefixCache, draft: Any) -> Answers:
        """Finished; the prompts were known. What the tree has of the answers is of no use to ``draft``."""
        with kv.Batch(model, cache, draft=[] if draft is None else draft) as batch:
            made = [
                batch.add(task.prompt, task.count, ignore_eos=True, logits_processors=task.processors)
                for task in self.each
            ]
            while batch.step():
                pass
        return Answers(made)


class Answers:
    """Of a batch: their ``tokens``, one after the other, and what was drafted of all."""

    def __init__(self, made: Sequence[kv.Generation[int]]) -> None:
        self.tokens = [token for answer in made for token in answer.tokens]
        self.proposed = sum(answer.proposed for answer in made)
        self.accepted = sum(answer.accepted for answer in made)


def tasks(text: list[int], questions: Sequence[list[int]]) -> dict[str, Task | Four]:
    """``text``: at least 3,000 tokens to edit and to quote from."""
    file = text[:2000]
    common = np.bincount(file).argsort()[::-1]
    name, other = int(common[12]), int(common[200])  # a token that stands there some dozen times, and a rare one
    edited = [other if token == name else token for token in file[:600]]
    quotes = [
        token for at in (100, 700, 1500) for token in [*text[2400 + at // 50 : 2410 + at // 50], *file[at : at + 45]]
    ]
    parts = [file[at : at + 400] for at in range(0, 2000, 500)]
    renamed = [[other if token == name else token for token in part[:150]] for part in parts]
    chats = [*questions, [*questions[0], *questions[1]]]
    asked = [*questions[0], *file[290:300]]
    return {
        "edits": Task(file, edited, {**PROMPT, **SUFFIX}),
        "repeats": Task(file[:500], None, {**TREE, **SUFFIX}),
        "quotes": Task(file, quotes, PROMPT),
        "elsewhere": Task(asked, file[300 : 300 + TOKENS], SUFFIX, known=[file]),
        **{
            f"chat {n}": Task(each, None, {**TREE, **(SUFFIX if n == 1 else {})}) for n, each in enumerate(questions, 1)
        },
        "records": Task(
            file[:100],
            records(text, 0),
            {**SUFFIX, **WAYS},
            known=[[*file[:100], *records(text, seed)] for seed in range(1, 7)],
        ),
        "four edits": Four([Task(part, edit, PROMPT) for part, edit in zip(parts, renamed)]),
        "four chats": Four([Task(each, None, PROMPT, TOKENS // 2) for each in chats]),
    }


def records(text: Sequence[int], seed: int) -> list[int]:
    """28 labels of five tokens, each with a value of two, one of three."""
    random = np.random.default_rng(seed)
    made: list[int] = []
    for label in range(28):
        at = 40 * label
        value = at + 10 + 5 * int(random.integers(3))
        made += [*text[at : at + 5], *text[value : value + 2]]
    return made


def model_tasks(questions: Sequence[list[int]], small: Any) -> dict[str, Task]:
    """``small`` drafts; its prompts are known after the first round, too."""
    draft = kv.DraftModel(small, kv.PrefixCache(small.caches(capacity=8192, warm_up=False)))
    return {f"model {n}": Task(each, None, {"model": draft}) for n, each in enumerate(questions[:2], 1)}


def known(model: Any, name: str, task: Task | Four) -> kv.PrefixCache:
    """A cache of the prompts and of what tasks know; the tree has the answer only where a task repeats it."""
    cache = kv.PrefixCache(model.caches(capacity=8192, warm_up=False))
    for each in task.each if isinstance(task, Four) else [task]:
        for text in (*each.known, each.prompt):
            with cache.begin(text) as session:
                for step in session.prefill():
                    model(step)
                if name == "repeats":
                    list(kv.generate(model, session, each.count, ignore_eos=True))
    return cache


def measured(
    report: Report, model: Any, name: str, task: Task | Four, rounds: int, peer: drafts_of_llama.Peer | None
) -> None:
    """A row for each drafter, and one for ``peer``, which answers single texts of one way."""
    cache = known(model, name, task)
    made: dict[str, kv.Generation[int] | Answers] = {}
    steps: dict[str, int] = {}

    seconds: dict[str, list[float]] = {}  # of the processor

    def side(which: str, draft: Any) -> Callable[[], None]:
        def run() -> None:
            before, began = cache.stats()["steps"], time.process_time()
            made[which] = task.answer(model, cache, draft)
            seconds.setdefault(which, []).append(time.process_time() - began)
            steps[which] = cache.stats()["steps"] - before

        return run

    sides = {"plain": side("plain", None), **{which: side(which, draft) for which, draft in task.drafts.items()}}
    other = None
    if peer is not None and isinstance(task, Task) and name in PEERED:
        other = peer.answers(task.prompt, task.text, task.count, task.known, again=name == "repeats")
        sides.update(other.sides)
    raced = race(sides, rounds=rounds, warm_up=1, clocked=() if other is None else other.sides)
    for which in task.drafts:
        drafted = made[which]
        assert made["plain"].tokens == drafted.tokens, f"{name}, {which}"
        ratio, rate = raced.ratio("plain", which), task.count / raced[which].median
        of_processor = Race({each: spent[-rounds:] for each, spent in seconds.items()}).ratio("plain", which)
        beside = f", suffix / this {raced.ratio('suffix', which)}" if which in WAYS else ""
        report.row(
            f"{name:10} {which:6} {ratio}  {rate:6.1f} tokens/s, {drafted.accepted} of {drafted.proposed} drafts "
            f"right, {steps['plain']} steps, with drafts {steps[which]}, by the processor's seconds {of_processor}"
            + beside,
            task=name, drafter=which, ratio=ratio, processor_ratio=of_processor, tokens_per_second=rate,
            plain_tokens_per_second=task.count / raced["plain"].median, proposed=drafted.proposed,
            accepted=drafted.accepted, steps={"plain": steps["plain"], "drafted": steps[which]},
        )  # fmt: skip
    if other is not None:
        other.row(report, name, raced, list(task.drafts))
    cache.close()


def measured_shapes(report: Report, model: Any, text: Sequence[int], rounds: int) -> None:
    """What a step of a tree takes against one of a line with as many rows, behind 200 tokens."""
    cache = kv.PrefixCache(model.caches(capacity=1024, warm_up=False))
    session = cache.begin(text[:200])
    for step in session.prefill():
        model(step)
    session.append(text[200])

    def side(paths: int, rows: int) -> Callable[[], None]:
        each = [text[201 + 40 * path : 200 + 40 * path + rows // paths] for path in range(paths)]
        return lambda: np.asarray(model(session.propose_tree(each), all_rows=True)).argmax()

    for paths, rows in ((2, 4), (2, 8), (2, 16), (3, 24), (4, 32)):
        raced = race({"line": side(1, rows), "tree": side(paths, rows)}, rounds=3 * rounds)
        ratio = raced.ratio("tree", "line")
        report.row(
            f"{rows} rows: a line {raced['line']}, {paths} paths {raced['tree']}, tree / line {ratio}",
            task="shapes", rows=rows, paths=paths, line=raced["line"], tree=raced["tree"], ratio=ratio,
        )  # fmt: skip
    cache.close()


def measured_rows(report: Report, model: Any, text: Sequence[int], rounds: int) -> None:
    """What a step of four answers takes with drafts of one, against one without, each behind 100 tokens."""
    cache = kv.PrefixCache(model.caches(capacity=1024, warm_up=False))
    sessions = [cache.begin(text[at : at + 100]) for at in (0, 200, 400, 600)]
    for session in sessions:
        for step in session.prefill():
            model(step)
        session.append(text[100])

    def side(drafts: int) -> Callable[[], float]:
        def run() -> float:
            began = time.process_time()
            step = cache.batch(sessions, drafts=[text[101 : 101 + drafts], [], [], []] if drafts else None)
            np.asarray(kv.ops.argmax(model(step, all_rows=drafts > 0)))
            if drafts > 0:
                step.accept([0] * 4)
            spent = time.process_time() - began
            for each in sessions:
                each.rollback(1)
                each.append(text[100])
            return spent

        return run

    sides = {str(4 + drafts): side(drafts) for drafts in (0, 1, 4, 5, 12)}
    raced = race(sides, rounds=3 * rounds, clocked=sides)
    for rows in ("5", "8", "9", "16"):
        ratio = raced.ratio(rows, "4")
        report.row(f"a step of 4 answers with {rows} rows / with 4: {ratio}", task="rows", rows=int(rows), ratio=ratio)
    cache.close()


def measured_price(report: Report, model: Any, text: Sequence[int], rounds: int) -> None:
    """What drafters that find nothing add to a step of one answer, on the host: in turns, 200 steps each."""
    cache = kv.PrefixCache(model.caches(capacity=1024, warm_up=False))
    seconds: list[float] = []  # of steps without a drafter, all threads

    def side(draft: Any) -> Callable[[], float]:
        def run() -> float:
            with cache.begin(text[:200], publish=False) as session:
                made = kv.generate(
                    model, session, TOKENS + 1, ignore_eos=True, draft=draft, temperature=2.0, seed=len(seconds)
                )
                next(made)
                began, own = time.perf_counter(), time.thread_time()
                list(made)
                spent = (time.thread_time() - own) / TOKENS
                if draft is None:
                    seconds.append((time.perf_counter() - began) / TOKENS)
                assert made.proposed == 0
            return spent

        return run

    nothing = {"callable": lambda _tokens, _most: [], "tree": "tree", "suffix": "suffix"}
    sides = {"none": side(None), **{name: side(draft) for name, draft in nothing.items()}}
    raced = race(sides, rounds=3 * rounds, clocked=sides)
    for name in nothing:
        extra = raced[name].median - raced["none"].median
        share = extra / sorted(seconds)[len(seconds) // 2]
        report.row(
            f"{name} that finds nothing: {1e6 * extra:.0f} us more a step, {100 * share:.2f} % of it",
            task="price", drafter=name, extra=extra, share=share,
        )  # fmt: skip
    cache.close()


@functools.cache
def large() -> Any:
    """The model in float32, which four times as many bytes are read for."""
    model = kv.models.load(smollm2.path(), dtype="float32")
    model.warm_up()
    return model


def draw(axes: Any, rows: Rows) -> None:
    """Plain over drafted, a bar for each text."""
    # llama.cpp's: over its own plain decoding
    rows = [row for row in rows if row["task"] not in ("shapes", "rows", "price")]
    axes.bar(range(len(rows)), [row["ratio"]["median"] for row in rows])
    axes.set_xticks(range(len(rows)), [f"{row['task']}\n{row['drafter']}" for row in rows])
    axes.axhline(1.0, color=GUIDE, linewidth=0.8)
    axes.set_ylabel("time plain / drafted")


def main() -> None:
    """Print a row for each text and drafter."""
    parser = arguments(__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--task", default="", help="those whose names begin with it")
    options = parser.parse_args()
    report = Report("an answer with drafts, and without", options.json)
    report.device(kv.Device())
    if options.small:
        model = random_models.build("dense-28m")
        random = np.random.default_rng(40)
        text = (random.zipf(1.3, 3000) % model.config.vocab_size).tolist()  # common words and rare ones
        questions = [random.integers(0, model.config.vocab_size, 16).tolist() for _ in QUESTIONS]
    else:
        model = kv.models.load(smollm2.path())
        text = model.tokenizer.encode(smollm2.text())
        questions = [list(model.chat_tokens([{"role": "user", "content": each}])) for each in QUESTIONS]
    model.warm_up()
    peer = None if options.small else drafts_of_llama.peer(smollm2.path())
    if "rows".startswith(options.task):
        measured_rows(report, model, text, options.rounds)
    if "shapes".startswith(options.task):
        measured_shapes(report, model, text, options.rounds)
    if "price".startswith(options.task):
        measured_price(report, model, text, options.rounds)
    for name, task in tasks(list(text), questions).items():
        if name.startswith(options.task):
            measured(report, model, name, task, options.rounds, peer)
    if not options.small:
        for name, task in model_tasks(questions, model).items():
            if name.startswith(options.task):
                measured(report, large(), name, task, options.rounds, None)
    report.close(draw)


if __name__ == "__main__":
    main()
