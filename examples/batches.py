"""A few-shot evaluation through Ray Data: questions in random order whose examples are the same for each subject.

    ./dev run python examples/batches.py

Asks the shipped tiny model, prints how many of the prompts' tokens were computed, and scores the choices of the first
questions. `--as-they-come` leaves out the sort by tokens.
"""

from __future__ import annotations

import argparse
import random

import ray.data

import kvtrie as kv
from plot import TINY

SUBJECTS = ("servers", "locks", "queries", "backups", "indexes")
FACTS = ("are used in many places", "take time", "fail at night", "cost memory", "have limits", "are kept on disk")


def questions(count: int) -> list[dict[str, object]]:
    """Rows {"prompt", "choices"}; the first lines of a prompt are those of all others about its subject."""
    order = random.Random(7)
    rows: list[dict[str, object]] = []
    for number in range(count):
        subject = SUBJECTS[number % len(SUBJECTS)]
        shots = "\n".join(
            f"Question: is it true that {subject} {fact}?\nAnswer: yes, {subject} {fact}." for fact in FACTS
        )
        prompt = f"{shots}\nQuestion {number}: what about {subject} {order.choice(FACTS)}?\nAnswer:"
        rows.append({"prompt": prompt, "choices": [" yes", " no", " it depends"]})
    order.shuffle(rows)
    return rows


def main() -> None:
    """Answers all, scores a few."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--replicas", type=int, default=1, help="actors, each with a model and a cache of its own")
    parser.add_argument("--as-they-come", action="store_true", help="do not sort the prompts by their tokens")
    parser.add_argument("--write", metavar="FOLDER", help="write the answers there as Parquet files")
    options = parser.parse_args()
    dataset = ray.data.from_items(questions(options.prompts), override_num_blocks=4)
    answers = kv.ray.generate(
        dataset, str(TINY), max_tokens=8, capacity=1024, replicas=options.replicas, group=not options.as_they_come
    ).materialize()
    total, reused = answers.sum(["prompt_tokens", "reused"]).values()
    print(f"{total} tokens of {options.prompts} prompts: {total - reused} computed, {reused} reused")
    if options.write:
        answers.write_parquet(options.write)
    scores = kv.ray.score(dataset.limit(4), str(TINY), capacity=1024)
    for row in scores.take_all():
        print([round(score, 2) for score in row["scores"]], "->", row["choices"][row["scores_best"]])


if __name__ == "__main__":
    main()
