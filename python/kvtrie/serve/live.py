"""The page at ``/`` that shows what a server does while it does it, and the events that it lives on.

    cache, batcher --_look(), in a thread--> Watch --> Mailbox of each page --/events--> page/live.js
    journal ---------------- listener ------------^

While nobody watches nothing is read and no explanation is made. One reading is for all that watch; the next one comes
after ten times as long as it took, but 0.5 s at least and 5 s at most. A mailbox holds the newest state and a bounded
number of requests, so that a slow page skips what is old and holds up nobody. Ends: of a page, when its client leaves;
of all, with the cache or ``Watch.close``, which a server calls first when it stops, or it would wait for the pages.

Events, each with JSON: ``hello`` (what is served), ``state`` (tree, tiers, figures), ``request`` (an ``Entry``) and
``beat`` (nothing new). Threads: the event loop's, but for ``_look`` and ``_figures``. Units: seconds, bytes, tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Optional

from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .._values import Node
from ..errors import ClosedError
from ..prefix_cache import PrefixCache
from ..viz.names import node_names
from ..viz.words import one_line
from .engine import Engine
from .failures import Refusal
from .journal import Entry
from .json_values import JsonObject, JsonView
from .labels import Label, labels
from .streams import event
from .tenants import Tenants

DRAWN = 400  # nodes that are sent; the others are counted
WATCHERS = 16  # pages at a time

_PAUSE, _LONGEST = 0.5, 5.0  # seconds between readings, at least and at most
_REST = 10  # times what the last one took
_BEAT = 10.0  # seconds after which a page hears that there is nothing new; after three without a word it tries anew
_WAITING = 100  # requests that a mailbox holds
_LABEL_TOKENS, _LABEL_COLUMNS = 48, 120

_FOLDER = Path(__file__).parent / "page"
_KINDS = {"html": "text/html; charset=utf-8", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_log = logging.getLogger(__name__)


def router(engine: Engine, tenants: Tenants, watch: Optional[Watch] = None) -> APIRouter:
    """Its routes, which are for people: the API's description leaves them out. ``watch``: for who wants to close it."""
    routes = APIRouter(include_in_schema=False)
    watch = Watch(engine) if watch is None else watch
    kinds = {path: _KINDS.get(path.suffix[1:]) for path in _FOLDER.iterdir()}
    files = {path.name: (path.read_bytes(), kind) for path, kind in kinds.items() if kind is not None}
    page = files.pop("index.html")

    def file_response(file: tuple[bytes, str]) -> Response:
        return Response(file[0], headers={**_HEADERS, "content-type": file[1]})

    @routes.get("/")
    async def live(request: Request) -> Response:
        """The page."""
        tenants.require_admin(request)
        return file_response(page)

    @routes.get("/page/{name}")
    async def file(name: str) -> Response:
        """The parts of the page; the same for everybody."""
        if name not in files:
            raise Refusal(404, f"there is no {name!r} here")
        return file_response(files[name])

    @routes.get("/events")
    async def events(request: Request) -> Response:
        """The events, from now on."""
        tenants.require_admin(request)
        if watch.count >= WATCHERS:
            raise Refusal(429, f"{WATCHERS} pages watch already")
        return _Watching(watch)

    return routes


class _Watching(StreamingResponse):
    """Watches while it is being sent, however that ends."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._box = watch, Mailbox()
        headers = {**_HEADERS, "x-accel-buffering": "no"}
        super().__init__(self._box.parts(), media_type="text/event-stream", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._watch.join(self._box)
            await super().__call__(scope, receive, send)
        finally:
            self._watch.leave(self._box)


# ---- who watches -----------------------------------------------------------------------------------------------------


class Mailbox:
    """The events that one page has not been sent yet."""

    def __init__(self) -> None:
        self._hello: Optional[bytes] = None
        self._state: Optional[bytes] = None
        self._entries: dict[int, Entry] = {}  # by their numbers, in the order in which they changed
        self._bell = asyncio.Event()
        self._over = False

    def put(
        self, *, hello: Optional[bytes] = None, state: Optional[bytes] = None, entry: Optional[Entry] = None
    ) -> None:
        """Something new: a state in place of the one before, a request behind the others."""
        self._hello, self._state = hello or self._hello, state or self._state
        if entry is not None:
            self._entries.pop(entry.number, None)
            self._entries[entry.number] = entry
            if len(self._entries) > _WAITING:
                del self._entries[next(iter(self._entries))]
        self._bell.set()

    def tell(self, entry: Entry) -> None:
        """A request has begun, or changed."""
        self.put(entry=entry)

    def close(self) -> None:
        """Nothing more comes."""
        self._over = True
        self._bell.set()

    async def parts(self) -> AsyncIterator[bytes]:
        """Events as bytes, until it is closed."""
        while not self._over:
            try:
                await asyncio.wait_for(self._bell.wait(), _BEAT)
            except asyncio.TimeoutError:
                yield event({}, "beat")
            else:
                yield self._taken()

    def _taken(self) -> bytes:
        """All that is new. Entries are read only now, when whoever made them has filled them in."""
        parts = [part for part in (self._hello, self._state) if part is not None]
        parts += [event(entry.as_dict(), "request") for entry in self._entries.values()]
        self._hello = self._state = None
        self._entries.clear()
        self._bell.clear()
        return b"".join(parts)


class Watch:
    """The mailboxes of all pages, and the task that fills them while there is one.

    The mailboxes are those that listen to the journal, which drops one that nobody holds any more. There is one task,
    the one in ``_task``: any other, which an exception left over, ends by itself.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._task: Optional[asyncio.Task[None]] = None
        self._closed = False
        self._state: Optional[bytes] = None  # of the task's last reading
        self._started: set[int] = set()  # requests whose first token was reported by it
        self._label = labels(engine.model.tokenizer, _LABEL_COLUMNS)

    @property
    def _boxes(self) -> list[Mailbox]:
        return [each for each in self._engine.journal.listeners if isinstance(each, Mailbox)]

    @property
    def count(self) -> int:
        """How many watch."""
        return len(self._boxes)

    def join(self, box: Mailbox) -> None:
        """From now on; it begins with what is known of the last requests."""
        if self._closed:
            return box.close()
        self._engine.journal.listeners.add(box)
        if self._task is None or self._task.done():
            self._state, self._started, self._task = None, set(), asyncio.create_task(self._run())
        box.put(hello=event(_hello(self._engine), "hello"), state=self._state)
        for entry in self._engine.journal.entries:
            box.tell(entry)

    def leave(self, box: Mailbox) -> None:
        """The last one ends the task."""
        self._engine.journal.listeners.discard(box)
        if self.count == 0 and self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> None:
        """Ends all pages' streams, those that come later too."""
        self._closed = True
        for box in self._boxes:
            box.close()

    @property
    def _is_current(self) -> bool:
        """In a task: whether it is the one that fills the mailboxes."""
        return self._task is asyncio.current_task()

    async def _run(self) -> None:
        try:
            await self._read_on()
        except ClosedError:
            pass
        except Exception:
            _log.exception("the live page's state could not be read")
        finally:
            for box in self._boxes if self._is_current else ():
                box.close()

    async def _read_on(self) -> None:
        loop, known = asyncio.get_running_loop(), None
        while self._is_current and self.count:
            began = loop.time()
            figures = await asyncio.to_thread(_figures, self._engine)
            if figures != known:
                known = figures
                self._state = await asyncio.to_thread(_look, self._engine.cache, figures, self._label)
                for box in self._boxes:
                    box.put(state=self._state)
            self._tell_first_tokens()
            await asyncio.sleep(min(max(_PAUSE, _REST * (loop.time() - began)), _LONGEST))

    def _tell_first_tokens(self) -> None:
        """The journal reports beginnings and ends; the first token is between them."""
        running = [entry for entry in self._engine.journal.entries if entry.running]
        for entry in running:
            if entry.seconds_to_first is not None and entry.number not in self._started:
                for box in self._boxes:
                    box.tell(entry)
        self._started = {entry.number for entry in running if entry.seconds_to_first is not None}


# ---- what they see ---------------------------------------------------------------------------------------------------


def _hello(engine: Engine) -> JsonObject:
    return {
        "name": engine.name,
        "context": engine.settings.context,
        "device": engine.model.device.name,
        "chat": bool(engine.model.tokenizer.chat_templates),
        "keys": bool(engine.settings.keys),
    }


def _figures(engine: Engine) -> JsonObject:
    """Everything but the tree, which has changed only if some of this has. Raises ``ClosedError``."""
    if engine.cache.closed:
        raise ClosedError("[serve] the cache is closed")
    stats = engine.cache.stats()
    names = ("nodes", "tokens", "sessions", "begins", "steps", "evicted_tokens", "page_ins", "page_outs", "pins")
    return {
        **{name: stats[name] for name in names},
        "tiers": tiers_of(stats),
        "batcher": engine.batcher.stats(),
        "totals": dict(engine.journal.totals),
    }


def tiers_of(stats: JsonView) -> list[JsonObject]:
    """The bytes of each tier, and its cap; ``cap`` is None where that is not this process's to say."""
    room = sum(pool["bytes"] * pool["limit_cells"] // max(pool["capacity_cells"], 1) for pool in stats["caches"])
    room += sum(pool["bytes"] * pool["limit_slots"] // max(pool["capacity_slots"], 1) for pool in stats["recurrent"])
    tiers = [
        {"name": "device", "bytes": stats["device_bytes"], "cap": room, "tokens": stats["device_tokens"]},
        {"name": "host", "bytes": stats["host_bytes"], "cap": stats["host_cap_bytes"], "tokens": stats["host_tokens"]},
    ]
    disk = stats["disk"]
    if disk is not None:
        of_disk = {"bytes": disk["bytes"], "cap": disk["cap_bytes"], "tokens": stats["disk_tokens"]}
        tiers.append({"name": "disk", **of_disk})
    return tiers


def _look(cache: PrefixCache, figures: JsonView, label: Label) -> bytes:
    """A ``state``: the figures with the tree. For a thread: it copies the tokens of the whole tree."""
    return event({**figures, **tree_of(cache, label)}, "state")


def tree_of(cache: PrefixCache, label: Label, most: int = DRAWN) -> JsonObject:
    """At most ``most`` nodes, parents before their children, and how much is left out."""
    nodes = cache.nodes()
    shown = chosen(nodes, most)
    names = node_names(shown)
    return {
        "nodes": [_node(node, names, label) for node in shown],
        "hidden_nodes": len(nodes) - len(shown),
        "hidden_tokens": _length(nodes) - _length(shown),
    }


def _length(nodes: Iterable[Node]) -> int:
    return sum(node.end - node.start for node in nodes)


def chosen(nodes: Sequence[Node], most: int) -> list[Node]:
    """The nodes to draw, each with all above it: what is live or pinned, then what was used last, then the longest."""
    shown: set[int] = set()
    for node in sorted(nodes, key=lambda each: (not (each.live or each.pinned), each.age, each.start - each.end)):
        path: list[int] = []
        above: Optional[Node] = node
        while above is not None and id(above) not in shown:
            path.append(id(above))
            above = above.parent
        shown.update(path[::-1][: most - len(shown)])
        if len(shown) >= most:
            break
    return [node for node in nodes if id(node) in shown]


def _node(node: Node, names: Mapping[int, str], label: Label) -> JsonObject:
    return {
        "id": names[id(node)],
        "parent": None if node.parent is None else names[id(node.parent)],
        "namespace": one_line(node.namespace),
        "start": node.start,
        "length": node.end - node.start,
        "tier": node.tier,
        "bytes": node.nbytes,
        "age": round(node.age, 1),
        "live": node.live,
        "pinned": node.pinned,
        "user": node.user,
        "point": node.point,
        "turns": [
            turn._asdict() for turn in label(_last_token(node.parent), tuple(node.tokens[:_LABEL_TOKENS].tolist()))
        ],
    }


def _last_token(node: Optional[Node]) -> int:
    return -1 if node is None else int(node.tokens[-1])
