"""Items that a thread computes on demand, also for coroutines: ``for`` and ``async for`` over the same object.

``async for`` asks for one item at a time. A thread of the object's own, made when it is first needed, computes it while
the event loop goes on; between items that thread sleeps. So nothing is computed ahead, and a slow reader holds up only
itself.

How a wait ends: with the item or with what computing it raised; and where the task is cancelled, at once. Computing
then stops behind the step that is under way, a token or one chunk of a prompt. What that step gave is kept for whoever
asks next, so cancelling loses nothing. ``aclose`` waits for that step, and so does the end of the interpreter. What
nobody has any more needs no ``aclose``. An exception loses no item (_handing.py).
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue

from ._bell import Bell
from ._closing import AsyncClosing
from ._handing import HandingBoth, Item
from ._persisting import persist
from .errors import BusyError, ClosedError

__all__ = ["Apart", "BothWays", "Left"]

_open: weakref.WeakSet[Apart] = weakref.WeakSet()


class Left(Exception):
    """Raised between two steps, where :attr:`Apart.left` says so."""


class Apart:
    """A thread that computes what one task at a time waits for.

    It ends with this object, behind what was asked of it. Not one of ``concurrent.futures``: those have the end of the
    interpreter wait for a whole prompt.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Task | None] = SimpleQueue()  # None: end
        self._thread = threading.Thread(target=_work, args=(self._asked,), name="kvtrie-generation", daemon=True)
        self._process = os.getpid()
        self._awaited: Bell | None = None  # of the task that waits
        self._left = False
        self._ended = False
        self._ending: _Task | None = None
        weakref.finalize(self, self._asked.put, None).atexit = False  # before there is a thread to end
        if not _open:
            atexit.unregister(_end_all)
            atexit.register(_end_all)  # now, so that it comes before what the cache needs ends
        self._thread.start()
        _open.add(self)

    @property
    def left(self) -> bool:
        """In its thread: whether nobody waits for what it computes."""
        return self._left and threading.current_thread() is self._thread

    async def run(self, work: Callable[[], None]) -> None:
        """``work`` in the thread. ``kv.errors.BusyError`` where another task waits, ``kv.errors.ClosedError`` where one
        closes it."""
        if self._awaited is not None and not self._awaited.mute:
            raise BusyError("[generate] another task waits for its next token, allowed one at a time")
        self._left = False  # before it is asked for: a `join` of another thread comes after this, or has ended it
        if self._ended:
            self._left = True
        bell = Bell()
        task = _Task(work, bell)
        try:
            self._awaited = bell
            self._ask(task)
            await bell.heard()
            task.result()
        except Left:
            raise ClosedError("[generate] it was closed while this task waited for its next token") from None
        finally:
            if self._awaited is bell:  # no other one came when its loop was closed
                self._awaited, self._left = None, not task.done
            task.cancelled = True
            del task  # an error's traceback leads here

    async def finish(self, work: Callable[[], None]) -> None:
        """``work`` behind what is being computed, which ends at its next step; the thread ends after it."""
        if self._ended and self._ending is None:
            return work()
        bell = Bell()
        if self._ending is None:
            task = _Task(work, bell)
            self._ask(task)
            self._ending = task
        else:
            task = self._ending
            task.bells.append(bell)
        self.end()
        self._left = True
        if not task.done:
            await bell.heard()
        task.result()

    def end(self) -> None:
        """The thread ends when it has done what it was asked for."""
        self._ended = True
        self._asked.put(None)  # again where it was asked before: a call may have been interrupted in between

    def join(self) -> None:
        """Ends it, behind the step that is under way, and waits for that."""
        self.end()
        self._left = True
        if self._process == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _ask(self, task: _Task) -> None:
        if self._ended:
            raise ClosedError("[generate] it was closed, or the interpreter is ending")
        self._asked.put(task)


class _Task:
    """A request to a thread. ``bells`` ring when it is ``done``; whoever adds one looks at that afterwards."""

    def __init__(self, work: Callable[[], None], bell: Bell) -> None:
        self._work = work
        self._error: BaseException | None = None
        self.bells = [bell]
        self.done = False
        self.cancelled = False  # before it was begun

    def do(self) -> None:
        """In the thread. Raises nothing."""
        try:
            if not self.cancelled:
                self._work()
        except BaseException as error:
            here = error.__traceback__
            self._error = error.with_traceback(here and here.tb_next)  # this frame leads to the error again
        self.done = True
        persist(self._ring)

    def result(self) -> None:
        """Raises what the work did. REQUIRES: ``done``."""
        if self._error is not None:
            raise self._error

    def _ring(self) -> None:
        for bell in self.bells:
            bell.ring()


def _work(asked: SimpleQueue[_Task | None]) -> None:
    """The thread. Between two tasks it holds nothing of theirs."""
    while True:
        task = asked.get()
        if task is None:
            return
        task.do()
        del task


def _end_all() -> None:
    """Before the interpreter ends its threads, so that none is in a step then."""
    for apart in list(_open):
        apart.join()


class BothWays(AsyncClosing, HandingBoth[Item]):
    """An iterator that computes in the thread that asks, and in one of its own for coroutines."""

    def __init__(self) -> None:
        self._apart: Apart | None = None

    # --- what the owner says, beside its items ----------------------------------------------------------------------

    @property
    def _over(self) -> bool:
        """Whether there is nothing more to compute."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends it."""
        raise NotImplementedError

    # --- both ways --------------------------------------------------------------------------------------------------

    async def _make_async(self) -> bool:
        """With the last item the thread has nothing more to do."""
        going = not self._over
        if going:
            await self._thread().run(self._make_one)
        if self._over and self._apart is not None:
            self._apart.end()
        return going

    async def aclose(self) -> None:
        """As ``close``, behind the step that is under way, which it waits for without holding the event loop."""
        if self._apart is None:
            self.close()
        else:
            await self._apart.finish(self.close)

    def _thread(self) -> Apart:
        if self._apart is None:
            self._apart = Apart()
        return self._apart

    def _make_one(self) -> None:
        """In the thread: until there is an item more, or nobody waits for one."""
        while not self._has_more and self._make():
            if self._apart is not None and self._apart.left:
                return
