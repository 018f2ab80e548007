"""Names of nodes that last as long as the nodes do, and the way back from a node to its tokens.

A watcher outside reads the tree again and again, and each reading has new objects. A name says which node of an earlier
reading is which of a later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from .._values import Node


def node_names(nodes: Iterable[Node]) -> dict[int, str]:
    """A name for each, by ``id()``, the same as long as it is there: from what is above it and its first token.

    A node keeps it when it grows and when its lower half is split off; siblings differ in their first token. Parents
    have to come before their children.
    """
    names: dict[int, str] = {}
    paths: dict[int, hashlib.blake2b] = {}
    for node in nodes:
        above = None if node.parent is None else paths[id(node.parent)]
        path = hashlib.blake2b(repr(node.namespace).encode(), digest_size=9) if above is None else above.copy()
        name = path.copy()
        name.update(node.tokens[:1].tobytes())
        path.update(node.tokens.tobytes())
        names[id(node)], paths[id(node)] = name.hexdigest(), path
    return names


def path_of(node: Node) -> npt.NDArray[np.int32]:
    """All tokens from the root of its namespace to the end of the node."""
    edges: list[npt.NDArray[np.int32]] = []
    above: Node | None = node
    while above is not None:
        edges.append(above.tokens)
        above = above.parent
    return np.concatenate(edges[::-1])


def leaves_below(node: Node) -> list[Node]:
    """The ends of all branches that go through the node; the node itself where nothing is below it."""
    leaves, waiting = [], [node]
    while waiting:
        each = waiting.pop()
        waiting.extend(each.children)
        if not each.children:
            leaves.append(each)
    return leaves
