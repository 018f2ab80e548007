"""Decoding after context shifts, whose moved keys are read with turned queries, beside decoding before any.

SmolLM2-135M-Instruct: sessions of the same length that were shifted 0, 1 and 2 times go on in turns, 32 tokens a round.
Prints tokens a second and, of each round, how many times as long the shifted ones take.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
from report import Report, arguments
from timing import race

KEPT, COUNT = 4, 32
NAMES = ("no shift", "one shift", "two shifts")


def filled(model: Any, cache: Any, text: Any, tokens: int, shifts: int) -> Any:
    """A session of about ``tokens`` tokens whose keys moved in ``shifts`` + 1 ways."""
    limit = 2 * tokens if shifts else tokens
    session = cache.begin(text[:limit], namespace=NAMES[shifts])
    for step in session.prefill():
        model(step)
    for _ in range(shifts):
        session.append(np.resize(text, limit - session.recorded))
        for step in session.prefill():
            model(step)
        assert session.shift(KEPT, limit=limit) is None
    return session


def decoded(model: Any, session: Any) -> None:
    """Goes on, and back again."""
    length = session.recorded
    for _ in kv.generate(model, session, max_tokens=COUNT, ignore_eos=True):
        pass
    session.rollback(session.recorded - length)


def main() -> None:
    """A row for each number of shifts."""
    parser = arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    report = Report(f"what does decoding at {given.tokens:,} tokens take after a context shift?", given.json)
    model = kv.models.load(smollm2.path())
    report.device(model.device)
    text = model.tokenizer.encode(smollm2.text())
    cache = kv.PrefixCache(model.caches(capacity=16 * given.tokens))
    sessions = {name: filled(model, cache, text, given.tokens, n) for n, name in enumerate(NAMES)}
    found = race(
        {name: functools.partial(decoded, model, each) for name, each in sessions.items()}, rounds=given.rounds
    )
    for shifts, name in enumerate(NAMES):
        rate, ratio = COUNT / found[name].median, found.ratio(name, NAMES[0])
        report.row(f"{name:<10} {rate:6.1f} tokens/s, {ratio}", shifts=shifts, tokens_per_second=rate, ratio=ratio)
    report.close()


if __name__ == "__main__":
    main()
