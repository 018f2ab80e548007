"""Decoding after context shifts, whose moved keys are read with turned queries, beside decoding before any.

    .venv/bin/python bench/bench_shift.py [--tokens 1024] [--rounds 5]

SmolLM2-135M-Instruct: sessions of the same length that were shifted 0, 1 and 2 times go on in turns, 32 tokens a round.
Prints tokens a second and, of each round, how many times as long the shifted ones take.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import kvtrie as kv
import smollm2
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


def decoded(model: Any, session: Any) -> int:
    """Goes on, and back again."""
    length = session.recorded
    tokens = len(list(kv.generate(model, session, max_tokens=COUNT, ignore_eos=True)))
    session.rollback(session.recorded - length)
    return tokens


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    model = kv.models.load(smollm2.path())
    text = model.tokenizer.encode(smollm2.text())
    cache = kv.PrefixCache(model.caches(capacity=16 * given.tokens))
    sessions = {name: filled(model, cache, text, given.tokens, n) for n, name in enumerate(NAMES)}
    found = race({name: lambda each=each: decoded(model, each) for name, each in sessions.items()}, rounds=given.rounds)
    for name in sessions:
        taken = found[name]
        print(f"{name}: {COUNT / taken.median:6.1f} tokens/s; {found.ratio(name, NAMES[0])} as long as without")


if __name__ == "__main__":
    main()
