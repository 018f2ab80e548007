"""The common part of the drawings: the nodes of a prefix cache as rows, folded where there are too many.

`collect()` reads `cache.nodes()` and `cache.stats()` once and returns an `Outline`; text, DOT, SVG and HTML are each a
plain function of it. Rows are in drawing order: a parent above its children, siblings by the size of what is below.
No step here is recursive, so a chain of ten thousand nodes is no problem.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .._arguments import optional_callable, refusal, text_of, whole
from .words import one_line

Decode = Callable[[list[int]], str]

_SNIPPET_TOKENS = 48


class TreeNode(Protocol):
    """One of its nodes: ``kvtrie.results.Node`` is one. ``children``: nodes, or their places in the list."""

    @property
    def namespace(self) -> str: ...

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int] | npt.NDArray[np.int32]: ...

    @property
    def tier(self) -> object: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def age(self) -> float: ...

    @property
    def user(self) -> bool: ...

    @property
    def pinned(self) -> bool: ...

    @property
    def live(self) -> int: ...

    @property
    def children(self) -> Sequence[TreeNode | int]: ...


class TreeSource(Protocol):
    """The parts of a cache that a drawing needs; `kvtrie.PrefixCache` has them."""

    def nodes(self) -> Sequence[TreeNode]: ...

    def stats(self) -> Mapping[str, object]: ...


@dataclass
class Row:
    """One line of a drawing: a node, or several siblings (with all below them) folded into one.

    `start` and `end` are offsets in tokens from the namespace's root; for a folded row `end` is the furthest end below.
    `token_count` and `nbytes` count what is stored, so for a folded row they are sums. `age` is in seconds since the
    last use. `shared_by` is the number of branches (leaves) below, 1 for a leaf. `node`: None for a folded row.
    """

    start: int
    end: int
    token_count: int
    tier: str
    nbytes: int
    age: float
    user: bool
    pinned: bool
    live: int
    depth: int
    parent: int
    shared_by: int = 1
    folded: int = 0
    snippet: str = ""
    last: bool = False
    node: TreeNode | None = None


@dataclass
class Section:
    """A namespace: its rows and what they add up to (folded nodes included)."""

    name: str
    rows: list[Row] = field(default_factory=list)
    nodes: int = 0
    tokens: int = 0
    nbytes: int = 0
    live: int = 0


@dataclass
class Outline:
    """All namespaces, and totals over them. `history_tokens` is what the branches would take if nothing were shared."""

    sections: list[Section]
    nodes: int
    tokens: int
    history_tokens: int
    live: int
    stats: Mapping[str, object]


@dataclass
class _Vertex:
    """A node on its way to becoming a row. `important` and `rank` decide what is shown when not all fit."""

    node: TreeNode
    children: list[_Vertex] = field(default_factory=list)
    size: int = 1
    leaves: int = 0
    tokens: int = 0
    nbytes: int = 0
    furthest: int = 0
    important: bool = False
    youngest: float = 0.0


def collect(cache: TreeSource, decode: Decode | None = None, max_nodes: int = 200) -> Outline:
    """Reads the tree of `cache`; shows at most `max_nodes` lines and folds the rest.

    `decode` turns a list of token ids into text for the labels (a tokenizer's `decode`). Live and pinned nodes and user
    points are shown before anything else, then the nodes used last. Raises `ArgumentError` for a `max_nodes` below 1,
    `ArgumentTypeError` for what is no such argument; what `decode` raises passes.
    """
    whole(max_nodes, "viz", "max_nodes", 1)
    optional_callable(decode, "viz", "decode", "a callable that turns token ids into text")
    if not (callable(getattr(cache, "nodes", None)) and callable(getattr(cache, "stats", None))) or isinstance(
        cache, type
    ):
        raise refusal(cache, "viz", "cache", "a PrefixCache, or what has its nodes() and stats()")
    nodes = list(cache.nodes())
    tops: dict[str, list[TreeNode]] = {}
    root_live: dict[str, int] = {}
    for node in nodes:
        if node.end == 0:
            root_live[node.namespace] = root_live.get(node.namespace, 0) + int(node.live)
            tops.setdefault(node.namespace, [])
        elif node.start == 0:
            tops.setdefault(node.namespace, []).append(node)
    forests = {name: [_grow(top, nodes) for top in tops[name]] for name in sorted(tops)}
    shown = _choose(forests, max_nodes)
    sections = [_section(name, forest, shown, decode) for name, forest in forests.items()]
    for section in sections:
        section.live += root_live.get(section.name, 0)
    return Outline(
        sections=sections,
        nodes=sum(section.nodes for section in sections),
        tokens=sum(section.tokens for section in sections),
        history_tokens=sum(int(node.end) for node in nodes if node.end > 0 and len(node.children) == 0),
        live=sum(section.live for section in sections),
        stats=cache.stats(),
    )


def _grow(top: TreeNode, nodes: Sequence[TreeNode]) -> _Vertex:
    root = _Vertex(top)
    order = [root]
    for vertex in order:  # grows while it is walked: parents come before children
        for child in vertex.node.children:
            below = _Vertex(nodes[child] if isinstance(child, int) else child)
            vertex.children.append(below)
            order.append(below)
    for vertex in reversed(order):
        node, children = vertex.node, vertex.children
        vertex.size = 1 + sum(child.size for child in children)
        vertex.leaves = sum(child.leaves for child in children) or 1
        vertex.tokens = int(node.end - node.start) + sum(child.tokens for child in children)
        vertex.nbytes = int(node.nbytes) + sum(child.nbytes for child in children)
        vertex.furthest = max([int(node.end)] + [child.furthest for child in children])
        vertex.important = bool(node.live or node.pinned or node.user) or any(child.important for child in children)
        vertex.youngest = min([float(node.age)] + [child.youngest for child in children])
        children.sort(key=lambda child: (child.size, _first_token(child.node)))
    return root


def _first_token(node: TreeNode) -> int:
    return int(node.tokens[0]) if len(node.tokens) else 0


def _choose(forests: Mapping[str, list[_Vertex]], max_nodes: int) -> set[int]:
    """Picks the vertices to show, best first, a parent always before its children.

    A line that says "n more" counts too, so that the drawing keeps to `max_nodes` lines (plus one per namespace).
    """
    queue: list[tuple[bool, float, int, int, _Vertex, _Vertex | None]] = []
    ticket = itertools.count()  # keeps the order total where all else is equal

    def offer(vertex: _Vertex, parent: _Vertex | None) -> None:
        heapq.heappush(queue, (not vertex.important, vertex.youngest, -vertex.tokens, next(ticket), vertex, parent))

    waiting: dict[int, int] = {}
    for forest in forests.values():
        for top in forest:
            offer(top, None)
    shown: set[int] = set()
    lines = 0
    while queue:
        _, _, _, _, vertex, parent = queue[0]
        closes = parent is not None and waiting[id(parent)] == 1
        if shown and lines + 1 + bool(vertex.children) - closes > max_nodes:
            break
        heapq.heappop(queue)
        shown.add(id(vertex))
        lines += 1 + bool(vertex.children) - closes
        if parent is not None:
            waiting[id(parent)] -= 1
        if vertex.children:
            waiting[id(vertex)] = len(vertex.children)
            for child in vertex.children:
                offer(child, vertex)
    return shown


def _section(name: str, forest: list[_Vertex], shown: set[int], decode: Decode | None) -> Section:
    section = Section(
        name,
        nodes=sum(top.size for top in forest),
        tokens=sum(top.tokens for top in forest),
        nbytes=sum(top.nbytes for top in forest),
    )
    rows = section.rows
    forest = sorted(forest, key=lambda top: (top.size, _first_token(top.node)))
    stack: list[tuple[list[_Vertex], int, int, bool]] = []  # vertices that make one row, depth, parent row, last child

    def push(siblings: list[_Vertex], depth: int, parent: int) -> None:
        hidden = [vertex for vertex in siblings if id(vertex) not in shown]
        if len(hidden) == 1 and hidden[0].size == 1:  # "1 more" would take the line that the node itself takes
            shown.add(id(hidden.pop()))
        visible = [vertex for vertex in siblings if id(vertex) in shown]
        groups = [[vertex] for vertex in visible] + ([hidden] if hidden else [])
        for index in reversed(range(len(groups))):
            stack.append((groups[index], depth, parent, index == len(groups) - 1))

    push(forest, 0, -1)
    while stack:
        group, depth, parent, last = stack.pop()
        if id(group[0]) in shown:
            rows.append(_row(group[0], depth, parent, last, decode))
            push(group[0].children, depth + 1, len(rows) - 1)
        else:
            rows.append(_folded_row(group, depth, parent))
    section.live = sum(_live_below(top) for top in forest)
    return section


def _live_below(top: _Vertex) -> int:
    total, stack = 0, [top]
    while stack:
        vertex = stack.pop()
        total += int(vertex.node.live)
        stack.extend(vertex.children)
    return total


def _row(vertex: _Vertex, depth: int, parent: int, last: bool, decode: Decode | None) -> Row:
    node = vertex.node
    return Row(
        start=int(node.start), end=int(node.end), token_count=int(node.end - node.start), tier=tier_name(node.tier),
        nbytes=int(node.nbytes), age=float(node.age), user=bool(node.user), pinned=bool(node.pinned),
        live=int(node.live), depth=depth, parent=parent, shared_by=vertex.leaves,
        snippet=snippet(node.tokens, decode), last=last, node=node,
    )  # fmt: skip


def _folded_row(group: list[_Vertex], depth: int, parent: int) -> Row:
    tiers = {tier_name(vertex.node.tier) for vertex in group}
    return Row(
        start=int(group[0].node.start), end=max(vertex.furthest for vertex in group),
        token_count=sum(vertex.tokens for vertex in group), tier=tiers.pop() if len(tiers) == 1 else "mixed",
        nbytes=sum(vertex.nbytes for vertex in group), age=min(vertex.youngest for vertex in group), user=False,
        pinned=False, live=sum(_live_below(vertex) for vertex in group), depth=depth, parent=parent,
        shared_by=sum(vertex.leaves for vertex in group), folded=sum(vertex.size for vertex in group), last=True,
    )  # fmt: skip


def tier_name(tier: object) -> str:
    """The tier as a word: a string stays, an enum gives its name, nothing gives "none"."""
    if tier is None:
        return "none"
    return str(getattr(tier, "name", tier)).lower()


def snippet(tokens: Sequence[int] | npt.NDArray[np.int32], decode: Decode | None) -> str:
    """The beginning of an edge as printable text on one line; empty without `decode`. Negative ids are left out."""
    if decode is None:
        return ""
    head = [int(token) for token in tokens[:_SNIPPET_TOKENS] if token >= 0]
    return one_line(text_of(decode, head, "viz")) if head else ""
