"""Prompts that share prefixes, and the least that can be computed for them, which is what a trie of all of them holds.

For the bench of Ray Data and for its tests. Nothing here is the library's.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def shared_prompts(prefixes: int, count: int, least: int = 150, most: int = 260, seed: int = 7) -> list[list[int]]:
    """``count`` prompts in random order: one of so many prefixes of ``least`` to ``most`` tokens, and 5 to 20 more."""
    random = np.random.default_rng(seed)
    shared = [random.integers(10, 3000, random.integers(least, most)).tolist() for _ in range(prefixes)]
    made = [shared[at % prefixes] + random.integers(10, 3000, random.integers(5, 20)).tolist() for at in range(count)]
    return [made[at] for at in random.permutation(count)]


def least_possible(prompts: list[list[int]]) -> int:
    """Nodes of a trie of all prompts, as nested dicts."""
    root: dict[int, Any] = {}
    count = 0
    for prompt in prompts:
        node = root
        for token in prompt:
            count += token not in node
            node = node.setdefault(token, {})
    return count
