"""The effects of a click on a watched tree. Each takes a node and returns a sentence that says what came of it.

They raise what the calls of the cache raise, and `ArgumentError` for a node that is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from .names import leaves_below, node_names, path_of
from .words import format_bytes, plural

if TYPE_CHECKING:
    from .._core import Session
    from .._values import Node
    from ..prefix_cache import PrefixCache

MOST_BRANCHES = 500  # that one click moves or evicts

Sessions = list["Session"]


def run(cache: PrefixCache, command: object, name: object, sessions: Sessions) -> str:
    """Does what a front end asked for. `name`: of the node; for "close", the place of a session in `sessions`.

    `sessions`: those that clicks have begun, which "branch" adds to.
    """
    if command == "close":
        return _close(name, sessions)
    act = COMMANDS.get(command) if isinstance(command, str) else None
    if act is None:
        raise ArgumentError(f"[watch] command: got {str(command)[:40]!r}, allowed {', '.join(COMMANDS)}, close")
    nodes = cache.nodes()
    names = node_names(nodes)
    node = next((each for each in nodes if names[id(each)] == name), None)
    if node is None:
        raise ArgumentError("[watch] node: got one that has left the tree, allowed one that is in it")
    return act(cache, node, sessions)


def _branch(cache: PrefixCache, node: Node, sessions: Sessions) -> str:
    session = cache.begin(path_of(node), node.namespace, reuse_all=True)
    sessions.append(session)
    left = len(session.remaining)
    rest = f", {plural(left, 'token')} to compute" if left else ""
    return f"Session {len(sessions) - 1} stands at token {session.length:,}{rest}."


def _page_out(cache: PrefixCache, node: Node, _: Sessions) -> str:
    freed = sum(cache.page_out(path_of(each), namespace=each.namespace) for each in _branches(node))
    return f"Paged out: {format_bytes(freed)} freed on the device." if freed else _NOTHING


def _page_in(cache: PrefixCache, node: Node, _: Sessions) -> str:
    there = cache.restore(path_of(node), node.namespace)
    return f"{there:,} of {plural(node.end, 'token')} are on the device."


def _evict(cache: PrefixCache, node: Node, _: Sessions) -> str:
    freed = sum(cache.evict(path_of(each), namespace=each.namespace) for each in _branches(node))
    return f"Evicted: {format_bytes(freed)} freed." if freed else _NOTHING


def _pin(cache: PrefixCache, node: Node, _: Sessions) -> str:
    if node.pinned:
        return f"{plural(cache.unpin(path_of(node), node.namespace), 'token')} unpinned."
    return f"{plural(cache.pin(path_of(node), node.namespace), 'token')} pinned."


def _close(place: object, sessions: Sessions) -> str:
    if not isinstance(place, int) or not 0 <= place < len(sessions):
        raise ArgumentError(f"[watch] session: got {str(place)[:40]}, allowed 0 to {len(sessions) - 1}")
    sessions[place].close()
    return f"Session {place} is closed."


def _branches(node: Node) -> list[Node]:
    """The ends of what goes through the node. A call for each takes the tail of its path that nobody else uses."""
    leaves = leaves_below(node)
    if len(leaves) > MOST_BRANCHES:
        raise ArgumentError(f"[watch] node: got one with {len(leaves)} branches, allowed {MOST_BRANCHES}")
    return leaves


_NOTHING = "Nothing was freed: other branches, sessions or pins hold it, or it is not on the device."

COMMANDS: dict[str, Callable[[PrefixCache, Node, Sessions], str]] = {
    "branch": _branch,
    "page_out": _page_out,
    "page_in": _page_in,
    "pin": _pin,
    "evict": _evict,
}
