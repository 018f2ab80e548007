"""Exceptions, and calls of other threads, at every point of our Python at which they may come.

Where CPython runs a signal's handler: behind a call, at the beginning of a function, at a jump backwards. Where memory
may be short: on any line. Where another thread may come: anywhere. So the points of a run are, in every frame of the
package,

    its beginning, each line, each instruction behind a call or a jump backwards, its return

in the order in which the run passes them. A :class:`Visit` acts at the n-th one; with n = 0 it counts them. Left out is
the end of a ``with`` block before its ``__exit__`` is called: CPython (3.9 to 3.13) runs no handler there, but tracing
stops there, and a lock that an exception finds at that place is given back by nobody.

Threads: those whose names begin with ``thread``; all share one count. Tracing ends where a point was found.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

import kvtrie as kv

PACKAGE = str(Path(kv.__file__).parent)
_JUMPS = ("CALL", "JUMP_BACKWARD", "RESUME", "SEND", "YIELD")


class Place(NamedTuple):
    """Where a point is."""

    file: str
    line: int
    function: str
    event: str  # "call", "line", "opcode" or "return"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function}, {self.event})"


class Visit:
    """A run of which each point is counted; ``act(place)`` at the ``at``-th (from 1), in the thread that passes it.

    ``folders``: those of the package that count, as prefixes of paths in it.
    """

    def __init__(
        self,
        act: Callable[[Place], None] | None = None,
        at: int = 0,
        *,
        thread: str = "MainThread",
        folders: tuple[str, ...] = ("",),
    ) -> None:
        self._act, self._at, self._thread = act, at, thread
        self._folders = tuple(f"{PACKAGE}/{folder}" for folder in folders)
        self._last: dict[FrameType, int] = {}
        self.count = 0
        self.place: Place | None = None

    def __enter__(self) -> Visit:
        self._before = sys.gettrace()
        threading.settrace(self._begin)
        if self._thread == "MainThread":
            sys.settrace(self._begin)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self._before)
        threading.settrace(None)  # type: ignore[arg-type]  # which is how it is ended
        self._last.clear()

    def _begin(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._folders) or self.place is not None:
            return None
        if not threading.current_thread().name.startswith(self._thread):
            return None
        frame.f_trace_opcodes = True
        self._point(frame, "call")
        return self._within

    def _within(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.place is not None:
            return None
        if event == "line" and frame.f_lasti not in _exits(frame.f_code):
            self._point(frame, "line")
        elif event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            if before is not None and before in _calls(frame.f_code) and frame.f_lasti not in _exits(frame.f_code):
                self._point(frame, "opcode")
        elif event == "return":
            self._last.pop(frame, None)
            self._point(frame, "return")
        return self._within

    def _point(self, frame: FrameType, event: str) -> None:
        self.count += 1
        if self.count != self._at or self._act is None:
            return
        code = frame.f_code
        self.place = Place(code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno, code.co_name, event)
        self._act(self.place)


@cache
def _calls(code: CodeType) -> frozenset[int]:
    """Instructions behind which a handler may run."""
    return frozenset(each.offset for each in dis.get_instructions(code) if each.opname.startswith(_JUMPS))


@cache
def _exits(code: CodeType) -> frozenset[int]:
    """Instructions that lead to the call of an ``__exit__`` at the end of a block."""
    found: set[int] = set()
    instructions = list(dis.get_instructions(code))
    for first, second, third in zip(instructions, instructions[1:], instructions[2:]):
        run = (first, second, third)
        if all(each.opname == "LOAD_CONST" and each.argval is None for each in run):
            found.update(each.offset for each in run)
    return frozenset(found)
