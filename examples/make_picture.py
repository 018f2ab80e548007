"""Draws the tree that the demo's plot leaves behind, for the README: one SVG file.

    ./dev run python examples/make_picture.py docs/images/tree.svg

The plot of conversations.py is played with the shipped model, without the cold runs. The cache's clock is a counter
that moves on by 20 seconds a turn, so the ages in the picture do not depend on the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

import kvtrie as kv
from plot import PLOT, TINY, Transcript, longest_prompt, readable, system_transcript

ANSWER_TOKENS = 32
SECONDS_A_TURN = 20.0


def play(model: kv.models.Model) -> str:
    """Plays the plot and returns the picture of the tree, with two sessions live."""
    now = [0.0]
    system = system_transcript(TINY)
    longest, total = longest_prompt(model.tokenizer, system, ANSWER_TOKENS)
    caches = model.caches(longest + (total - longest) // 4)
    cache = kv.PrefixCache(caches, fingerprint=model.fingerprint, clock=lambda: now[0])
    prompts: dict[str, Transcript] = {}
    spoken = {"": system}
    for turn in PLOT:
        prompt = prompts[turn.again] if turn.again else spoken[turn.after].ask(model.tokenizer, turn.says)
        with cache.begin(prompt.tokens) as session:
            answer = list(kv.generate(model, session, ANSWER_TOKENS, turn.heat, top_k=40, seed=1))
        prompts[turn.label], spoken[turn.label] = prompt, prompt.answer(model.tokenizer, answer)
        now[0] += SECONDS_A_TURN
    with cache.begin(spoken["anna 4"].tokens, reuse_all=True), cache.begin(spoken["chloe 1b"].tokens, reuse_all=True):
        picture = kv.viz.tree_svg(cache, readable(model.tokenizer))
    cache.close()
    return picture


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(play(kv.models.load(TINY)), encoding="utf-8")
