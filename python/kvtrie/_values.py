"""Small values that the core hands out: reasons, and the nodes of a tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt


class Reason(str):
    """Why less was reused than the tree knows: "code: text", or an empty string when nothing was left out.

    ``code``: "none", "last_token", "no_room", "checksum" or "not_used". ``text``: one sentence.
    """

    code: str
    text: str

    def __new__(cls, code: str, text: str) -> Reason:
        self = super().__new__(cls, "" if code == "none" else f"{code}: {text}")
        self.code = code
        self.text = text
        return self

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (self.code, self.text)


class Node:
    """One node of a prefix cache's tree, as it was when ``nodes()`` was called.

    ``tokens``: int32, those of its own edge, which cover [``start``, ``end``). ``children``: the nodes below.
    ``parent``: the node above, None at the top of a namespace. ``tier``: "device" or "host". ``nbytes``: of its own
    tokens. ``age``: seconds since it was last used. ``user``: marked by ``checkpoint``. ``pinned``: by ``pin``.
    ``live``: sessions that stand on it.
    """

    __slots__ = (
        "age",
        "children",
        "end",
        "live",
        "namespace",
        "nbytes",
        "parent",
        "pinned",
        "start",
        "tier",
        "tokens",
        "user",
    )

    def __init__(
        self,
        tokens: npt.NDArray[np.int32],
        start: int,
        end: int,
        namespace: str,
        tier: str,
        nbytes: int,
        age: float,
        user: bool,
        pinned: bool,
        live: int,
    ) -> None:
        self.tokens = tokens
        self.start = start
        self.end = end
        self.namespace = namespace
        self.tier = tier
        self.nbytes = nbytes
        self.age = age
        self.user = user
        self.pinned = pinned
        self.live = live
        self.children: list[Node] = []
        self.parent: Optional[Node] = None

    def __repr__(self) -> str:
        marks = "".join(f", {word}" for word, on in (("user", self.user), ("pinned", self.pinned)) if on)
        live = f", {self.live} live" if self.live else ""
        where = f"[{self.start}, {self.end}) of {self.namespace!r}"
        return f"<kvtrie.Node {where}, {self.tier}, {self.nbytes} bytes{marks}{live}>"


def make_nodes(rows: Iterable[tuple[Any, ...]]) -> list[Node]:
    """Nodes of the core's rows (pre-order, a parent before its children). A namespace's root is no node."""
    made: list[Optional[Node]] = []
    for tokens, start, end, parent, namespace, tier, nbytes, age, user, pins, live in rows:
        if parent < 0:
            made.append(None)
            continue
        node = Node(tokens, start, end, namespace, tier, nbytes, age, user, pins > 0, live)
        above = made[parent]
        if above is not None:
            node.parent = above
            above.children.append(node)
        made.append(node)
    return [node for node in made if node is not None]
