"""A live picture of a cache in a notebook, and what clicks in it do.

    pulse thread --look--> cache                 front end --"here", "do", "bye"--> hear()
        `--picture--> Front (a comm) --> page        `-- hear() --command--> cache, then a picture

The front end asks for nothing but commands: pictures come from a thread, so that they come while a cell runs. It looks
only at `stats()` while nothing happens, rests ten times as long as a look takes, looks less often while no page has
spoken for a minute, and ends with the cache, with `close`, when the last page leaves, or after an hour without a word.
It knows the cache and the watch by weak references: neither lives longer for being watched. Commands run on the thread
that hears of them, the kernel's. An exception of a look or a command is shown in the page and raised nowhere.

Threads: any. Locks: `_lock` for what a look changes and shows; never held while a command runs. Units: seconds.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Optional
from xml.sax.saxutils import escape

from .._arguments import optional_callable, refusal, whole
from .._live import Live
from ..errors import ClosedError
from . import watch_commands
from .notebook import tree_html
from .outline import Decode
from .watch_picture import Picture, Reading, Stats, events, picture, signs

if TYPE_CHECKING:
    from .._core import Session
    from ..prefix_cache import PrefixCache
    from .front import Front

_log = logging.getLogger(__name__)

_PAUSE, _LONGEST, _REST = 0.25, 5.0, 10  # between looks, at least and at most; times what the last one took
_AGES = 5.0  # after which a picture is drawn anew although only ages have changed
_SILENCE, _IDLE = 60.0, 2.0  # without a word from a page; what is between looks from then on
_PATIENCE = 3600.0  # without a word from a page after which nobody is looking
_EVENTS = 12  # that a picture shows

_CLOSED = "This cache is closed."
_running: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch(Live):
    """A live picture of a ``PrefixCache``; ``kvtrie.viz.watch`` makes one, and a notebook shows it.

    ``sessions``: those that clicks on "Branch" have begun, for you to go on with. They are live until you close them,
    or until ``close()`` here, if you hold no other reference. Any thread may call.
    """

    def __init__(self, cache: PrefixCache, decode: Optional[Decode] = None, *, max_nodes: int = 60) -> None:
        optional_callable(decode, "watch", "decode", "a callable that turns token ids into text")
        whole(max_nodes, "watch", "max_nodes", 1)
        if not all(callable(getattr(cache, name, None)) for name in ("nodes", "stats", "begin", "evict")):
            raise refusal(cache, "watch", "cache", "a PrefixCache")
        self.sessions: list[Session] = []
        self._cache = weakref.ref(cache)
        if decode is None and cache.tokenizer is not None:
            decode = cache.tokenizer.decode
        self._decode, self._max_nodes = decode, max_nodes
        self._lock = threading.RLock()
        self._front: Optional[Front] = None
        self._before: Optional[Stats] = None
        self._events: deque[list[str]] = deque(maxlen=_EVENTS)
        self._drawn = 0.0  # when the last picture was made
        self._failed = ""  # what the last look raised: it is shown once
        self._over = False  # the cache is closed or gone, and a picture has said so
        self._pages: set[str] = set()
        self._heard = 0.0  # when a page last spoke, or was shown
        self._thread: Optional[threading.Thread] = None
        self._stop = threading.Event()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called, or the front end has deleted the widget."""
        return self._closed

    def refresh(self) -> None:
        """Looks now, and shows what there is. Never needed while a page is open."""
        self._look(always=True)

    def close(self) -> None:
        """Ends it: the page keeps the last picture, and clicks there do nothing. May be called twice."""
        with self._lock:
            self._closed = True
            front, self._front = self._front, None
            thread = self._thread
        self._stop.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self.sessions.clear()
        if front is not None:
            front.close()

    # --- display -----------------------------------------------------------------------------------------------------

    def to_html(self) -> str:
        """The picture as it is now, for pages without a kernel: no script, no link."""
        cache = self._cache()
        if cache is None:
            return f"<p>{_CLOSED}</p>"
        try:
            return tree_html(cache, self._decode, max_nodes=self._max_nodes)
        except ClosedError:
            return f"<p>{_CLOSED}</p>"
        except Exception as error:
            return f"<p>{escape(_said(error))}</p>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_mimebundle_(self, **_: object) -> dict[str, object]:
        """The widget where there is one; beside it the SVG for readers of a stored notebook."""
        bundle: dict[str, object] = {"text/plain": repr(self), "text/html": self.to_html()}
        front = self._open_front()
        if front is not None:
            bundle = {**front.view(), **bundle}
            self._heard = time.monotonic()
            self.refresh()
            self._start()
        return bundle

    def __repr__(self) -> str:
        cache = self._cache()
        return f"<kvtrie.viz.Watch of {'a cache that is gone' if cache is None else repr(cache)}>"

    def _open_front(self) -> Optional[Front]:
        """The widget; None without anywidget, without a kernel, or once this is closed."""
        with self._lock:
            if self._front is None and not self._closed:
                try:
                    from .front import open_front
                except ImportError as error:
                    _log.info("no live widget, only a picture: %s (pip install 'kvtrie[notebooks]')", error)
                    return None
                self._front = open_front(self.hear, self.close)
            return self._front

    # --- what a page says --------------------------------------------------------------------------------------------

    def hear(self, message: object) -> None:
        """A message of a page: "here" and "bye" with its ``page``, or "do" with ``command``, ``node`` and ``ticket``.

        Raises nothing that an ``Exception`` is: what goes wrong is shown in the page.
        """
        if not isinstance(message, Mapping) or self._closed:
            return
        kind, page = message.get("kind"), str(message.get("page"))[:40]
        self._heard = time.monotonic()
        if kind == "bye":
            self._pages.discard(page)
            if not self._pages:
                self._stop.set()
            return
        self._pages.add(page)
        if kind == "do":
            self._look(always=True, after={"notice": self._act(message), "ticket": message.get("ticket")})
        front = self._front
        if front is not None and kind == "here":
            front.heard()
        self._start()

    def _act(self, message: Mapping[object, object]) -> list[str]:
        """Runs a command: what came of it, as a kind and a sentence."""
        cache = self._cache()
        try:
            if cache is None:
                raise ClosedError(f"[watch] {_CLOSED}")
            return ["done", watch_commands.run(cache, message.get("command"), message.get("node"), self.sessions)]
        except Exception as error:
            return ["problem", _said(error)]

    # --- looks -------------------------------------------------------------------------------------------------------

    def _look(self, *, always: bool, after: Optional[Picture] = None) -> None:
        """Looks and shows what there is: if something has changed, or ``always``. ``after``: what a click did."""
        with self._lock:  # until it is shown, so that no picture overtakes another
            try:
                shown = self._read(always)
                self._failed = ""
            except ClosedError:
                shown = {"over": _CLOSED} if always or not self._over else {}
                self._over = True
            except Exception as error:
                shown = {"notice": ["problem", _said(error)]} if always or self._failed != _said(error) else {}
                self._failed = _said(error)
            if shown and self._front is not None:
                self._show(self._front, {**shown, **(after or {}), "events": list(self._events)})

    def _read(self, always: bool) -> Picture:
        cache = self._cache()
        if cache is None:
            raise ClosedError(f"[watch] {_CLOSED}")
        now, before = time.monotonic(), self._before
        aged = now - self._drawn >= _AGES and now - self._heard < _SILENCE
        if not (always or before is None or aged) and signs(before) == signs(cache.stats()):
            return {}
        reading = Reading.of(cache)
        if before is not None:
            self._events.extend(events(before, reading.figures))
        self._before, self._drawn = reading.figures, now
        shown, problem = picture(reading, self._decode, self._max_nodes)
        if problem:
            shown["notice"] = ["problem", problem]
        stand = [_stands(place, session) for place, session in enumerate(self.sessions)]
        shown["sessions"] = [each for each in stand if each is not None]
        return shown

    def _show(self, front: Front, shown: Picture) -> None:
        try:
            front.show(shown)
        except Exception as error:  # of the kernel's sockets: it is about to end
            _log.info("a picture of a watched cache could not be sent: %s", _said(error))
            self._stop.set()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        with self._lock:
            if self._closed or self._over or self._front is None or not self._front.connected:
                return
            if self._thread is not None and self._thread.is_alive() and not self._stop.is_set():
                return
            self._stop = threading.Event()
            thread = threading.Thread(
                target=_beat, args=(weakref.ref(self), self._stop), name="kvtrie-watch", daemon=True
            )
            self._thread = thread
            _running.add(self)
            thread.start()

    def _pulse(self) -> Optional[float]:
        """One look of the thread: how long to rest, or None when it is to end."""
        began = time.monotonic()
        self._look(always=False)
        silence = time.monotonic() - self._heard
        if self._over or silence > _PATIENCE:
            return None
        least = _PAUSE if silence < _SILENCE else _IDLE
        return min(max(least, _REST * (time.monotonic() - began)), _LONGEST)


def _beat(ref: weakref.ref[Watch], stop: threading.Event) -> None:
    rest: Optional[float] = _PAUSE
    while rest is not None and not stop.wait(rest):
        watch = ref()
        rest = None if watch is None else watch._pulse()
        del watch


@atexit.register
def _end_all() -> None:
    """Before the interpreter takes its modules apart: no thread is in a call of the core then."""
    threads = [(watch._stop, watch._thread) for watch in list(_running)]
    for stop, _ in threads:
        stop.set()
    for _, thread in threads:
        if thread is not None:
            thread.join(_LONGEST)


def _stands(place: int, session: Session) -> Optional[list[object]]:
    """A session as a page shows it: its place in the list, and a text. None once it is closed."""
    return None if session.closed else [place, f"session {place} stands at token {session.length:,}"]


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def watch(cache: PrefixCache, decode: Optional[Decode] = None, *, max_nodes: int = 60) -> Watch:
    """A live picture of ``cache`` for a notebook: put it on the last line of a cell.

    It shows the tree as it changes, who stands where, and hits and misses as they happen, while cells run, too. A click
    on a node offers to branch there, to page it out or in, to pin it and to evict it; ``.sessions`` has what was
    branched. ``decode`` turns token ids into text for the labels; None: the cache's tokenizer does. At most
    ``max_nodes`` rows are drawn.

    It needs ``pip install 'kvtrie[notebooks]'``; without that, and where a stored notebook is read, it is the SVG. The
    cache lives no longer for being watched. Raises ``ArgumentTypeError`` for what is no cache or cannot decode.
    """
    return Watch(cache, decode, max_nodes=max_nodes)
