"""Small values that the core hands out: reasons, and the nodes of a tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import numpy as np
import numpy.typing as npt

from ._whole import Slotted


class Reason(str):
    """Why less was reused than the tree knows: "code: text", or an empty string when nothing was left out.

    ``code``: "none", "last_token" (one token is left to compute), "no_room" (the rest does not fit on the device),
    "checksum" (the rest came back damaged), "not_used", "no_state" (recurrent layers have no state there),
    "window_incomplete" (cells that a window or chunk needs there are gone), "atomic_span" (the match ends inside an
    image or another span that goes as one) or "recompute" (the rest is in a lower tier, and computing it again is
    measured to be faster). ``text``: one sentence.
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


class Reprocess(Slotted):
    """The result of ``Session.shift`` where stored keys cannot move: nothing changed.

    ``tokens``: int32, what a new session has to begin with: the tokens kept, and those after the dropped ones.
    """

    __slots__ = ("tokens",)

    def __init__(self, tokens: npt.NDArray[np.int32]) -> None:
        self.tokens: npt.NDArray[np.int32] = tokens

    def __repr__(self) -> str:
        return f"<kvtrie.Reprocess {len(self.tokens)} tokens>"


class Node(Slotted):
    """One node of a prefix cache's tree, as it was when ``nodes()`` was called.

    ``tokens``: int32, those of its own edge, which cover [``start``, ``end``). ``children``: the nodes below.
    ``parent``: the node above, None at the top of a namespace. ``tier``: the lowest that its tokens are read from,
    "device", "host" or "disk". ``nbytes``: of its own tokens. ``age``: seconds since it was last used. ``user``:
    marked by ``checkpoint``. ``pinned``: by ``pin``. ``live``: sessions that stand on it. ``point``: the restore
    point at its end: "" for none, "spaced", "end", "branch" or "user".
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
        "point",
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
        point: str = "",
    ) -> None:
        self.tokens: npt.NDArray[np.int32] = tokens
        self.start: int = start
        self.end: int = end
        self.namespace: str = namespace
        self.tier: str = tier
        self.nbytes: int = nbytes
        self.age: float = age
        self.user: bool = user
        self.pinned: bool = pinned
        self.live: int = live
        self.point: str = point
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
    for tokens, start, end, parent, namespace, tier, nbytes, age, user, pins, live, point in rows:
        if parent < 0:
            made.append(None)
            continue
        node = Node(tokens, start, end, namespace, tier, nbytes, age, user, pins > 0, live, point)
        above = made[parent]
        if above is not None:
            node.parent = above
            above.children.append(node)
        made.append(node)
    return [node for node in made if node is not None]
