"""How much do five agents gain when their generations share steps, and how much of what the steps allow is it?

SmolLM2-135M-Instruct, weights as its file has them. Five agents have the same instructions of 1,500 tokens, which are
in the cache, and a question of their own each; each gets an answer of 48 tokens, chosen greedily.

    one by one       kv.generate for one agent after the other
    generate_batch   all of them at a time
    bare steps       decode steps of five rows and their argmax, without choosing, stopping or waiting: what a batch
                     cannot beat

``--agents`` changes their number, ``--model`` the model. Sides run in turns, each on a cache of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from report import Report, arguments
from timing import Race, race

INSTRUCTIONS, QUESTION, ANSWER = 1500, 24, 48  # tokens
CAPACITY = 4096
GOAL = 0.9  # of the bare steps' speed


class Agents:
    """The prompts, and a cache that knows their instructions."""

    def __init__(self, model: Any, text: np.ndarray, count: int) -> None:
        self.model, self.cache = model, kv.PrefixCache(model.caches(capacity=CAPACITY), host_bytes=0)
        starts = [INSTRUCTIONS + QUESTION * agent for agent in range(count)]
        self.prompts = [np.concatenate([text[:INSTRUCTIONS], text[at : at + QUESTION]]) for at in starts]
        with self.cache.begin(text[:INSTRUCTIONS]) as session:
            for step in session.prefill():
                model(step)

    def one_by_one(self) -> None:
        for prompt in self.prompts:
            with self.cache.begin(prompt) as session:
                tokens = list(kv.generate(self.model, session, ANSWER, ignore_eos=True, temperature=0))
                assert len(tokens) == ANSWER

    def generate_batch(self) -> None:
        answers = kv.generate_batch(self.model, self.prompts, ANSWER, cache=self.cache, ignore_eos=True, temperature=0)
        assert all(len(answer.tokens) == ANSWER for answer in answers)

    def bare_steps(self) -> None:
        sessions = [self.cache.begin(prompt) for prompt in self.prompts]
        for session in sessions:
            for step in session.prefill():
                logits = self.model(step)
            session.append(int(np.asarray(kv.ops.argmax(logits))[0]))
        for _ in range(ANSWER - 1):
            logits = self.model(self.cache.batch(sessions))
            for session, token in zip(sessions, np.asarray(kv.ops.argmax(logits))):
                session.append(int(token))
        for session in sessions:
            session.close()


def timed(run: Callable[[], None]) -> Callable[[], float]:
    def call() -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    return call


def tell(report: Report, took: Race, agents: int) -> None:
    """One row for each side: tokens per second of all agents."""
    best = "bare steps"
    for name, samples in took.samples.items():
        share, gain = took.ratio(best, to=name), took.ratio("one by one", to=name)
        speed = agents * ANSWER / took[name].median
        text = f"{name:<16} {took[name]} = {speed:.0f} tokens/s   {gain} one by one, {share} of bare steps"
        goal = GOAL if name == "generate_batch" else None
        text += f", goal {goal}: {'met' if share.median >= goal else 'missed'}" if goal else ""
        report.row(
            text, side=name, agents=agents, runs=len(samples), took=took[name], gain=gain, share=share, goal=goal
        )


def draw(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Tokens per second."""
    names = [row["side"] for row in rows]
    axes.bar(names, [row["agents"] * ANSWER / row["took"]["median"] for row in rows])
    axes.set_ylabel("tokens per second, all agents")


def main() -> None:
    """One row for each side."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--model", default=None, help="a folder or GGUF file with a tokenizer")
    options = parser.parse_args()
    try:
        model = kv.models.load(options.model or smollm2.path())
    except FileNotFoundError as error:
        print(error)
        return
    model.warm_up()
    report = Report(f"{options.agents} agents with one prompt of {INSTRUCTIONS} tokens", options.json)
    report.device(model.device)
    text = np.array(model.tokenizer.encode(smollm2.text()), np.int32)
    sides = {}
    for name in ("one by one", "generate_batch", "bare steps"):
        sides[name] = timed(getattr(Agents(model, text, options.agents), name.replace(" ", "_")))
    took = race(sides, rounds=options.rounds, warm_up=1, clocked=tuple(sides))
    tell(report, took, options.agents)
    report.close(draw)


if __name__ == "__main__":
    main()
