"""Sweeps over points of `ways`: `interruption_worker.py WHAT KIND WAYS POINTS SEED`; prints what came of them.

WHAT, joined by commas, each with a line of JSON of its own: "errors", an exception in the reading thread; "inner", one
in a thread of ours; "closing", another thread closes the object, its session or its cache there; "closing inner", the
same at points of a thread of ours; "forks", the process is forked there; "signals", SIGINTs at any moment while POINTS
answers are read. WAYS: names joined by commas, or "all". POINTS: how many of each way's points are tried, 0 for all of
them. Ends by itself where one hangs, and says where: the last line before the stacks on stderr.
"""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import kvtrie as kv
import ways
from interruptions import Place, Visit
from processes import PATIENCE
from ways import Run

INNER = "kvtrie"
NET = {
    "_run",
    "_turn",
    "_fail_all",
    "_work",
    "do",
    "_ring",
    "persist",
    "_succeeds",
}  # what catches the errors of threads of ours


class Boom(Exception):
    """What a callback raises."""


CLOSED = ("cache", "object", "session", "batcher")
HANGS = 300.0  # seconds; a run takes 0.02

ERRORS: tuple[type[BaseException], ...] = (KeyboardInterrupt, MemoryError, Boom, asyncio.CancelledError)


class Report:
    """Counts of outcomes, and sentences about what was wrong."""

    def __init__(self) -> None:
        self.points = self.played = 0
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.places: set[tuple[str, int]] = set()

    def add(self, way: object, place: Place, how: str, outcome: str, wrong: str = "") -> None:
        self.played += 1
        self.outcomes[outcome] += 1
        self.places.add((place.file, place.line))
        if wrong:
            self.wrong.append(f"{type(way).__name__}, {how} at {place}: {wrong}")

    def text(self) -> str:
        return json.dumps(
            {
                "points": self.points,
                "played": self.played,
                "lines": len(self.places),
                "outcomes": dict(self.outcomes),
                "wrong": self.wrong[:20],
                "wrongs": len(self.wrong),
            }
        )


def tell(place: Place) -> None:
    """Where it is, for whoever finds it hanging."""
    os.write(2, f"{place}\n".encode())


def numbers(count: int, most: int, chance: random.Random) -> Iterator[int]:
    """Points to try, of `count`; 0 for all."""
    yield from range(1, count + 1) if most == 0 or most >= count else sorted(chance.sample(range(1, count + 1), most))


def counted(make: Callable[[], Run], thread: str) -> int:
    way = make()
    with Visit(thread=thread) as visit:
        way.go()
    way.close()
    return visit.count


def undisturbed(way: Run) -> str:
    """What is wrong with a run on what an earlier one left."""
    way.leave()
    way.handed.clear()
    way.go()
    return compared(way, handed=True)


def compared(way: Run, handed: bool) -> str:
    if way.tokens != way.wanted:
        return f"got {way.tokens}, want {way.wanted}"
    if handed and way.handed != way.handed_wanted:
        return f"handed out {way.handed}, want {way.handed_wanted}"
    return ""


def left_over(way: Run, threads: int) -> str:
    """What is still held once all is closed."""
    way.leave()
    gc.collect()
    if not way.cache.closed:
        found = way.cache.check()
        if found:
            return f"check: {found}"
        sessions = way.cache.stats()["sessions"]
        if sessions:
            return f"{sessions} sessions are left"
    way.cache.close()
    end = time.monotonic() + PATIENCE
    while threading.active_count() > threads:
        if time.monotonic() > end:
            return f"threads are left: {threading.enumerate()}"
        time.sleep(0.001)
        gc.collect()
    return ""


def error_at(make: Callable[[], Run], at: int, error: type[BaseException], thread: str, report: Report) -> None:
    """Read on after an exception: the very tokens, or an end that says so; then nothing is lost or held."""
    threads = threading.active_count()
    way = make()

    def act(place: Place) -> None:
        tell(place)
        if place.function in NET and thread == INNER:
            return
        raise error("placed")

    visit = Visit(act, at, thread=thread)
    said, wrong = "unnoticed", ""
    try:
        with visit:
            way.go()
    except BaseException as raised:
        said = "raised"
        if not (isinstance(raised, error) or "placed" in repr(raised) or "fits into memory" in str(raised)):
            wrong = f"raised {raised!r}"
    del act
    if visit.place is None:
        way.close()
        return
    place = visit.place
    if not wrong:
        said, wrong = read_on(way, said, place)
    if not wrong:
        wrong = undisturbed(way)
    report.add(way, place, error.__name__, said, wrong or left_over(way, threads))


def read_on(way: Run, said: str, place: Place) -> tuple[str, str]:
    """(outcome, what is wrong)."""
    try:
        way.go()
    except BaseException as raised:
        if ended(way):
            return f"{said}, ended", ""
        return said, f"reading on raised {''.join(traceback.format_exception(raised))}"
    if way.tokens == way.wanted:
        # What returns may be lost on its way to the reader, who finds it in `tokens`.
        return f"{said}, went on", compared(way, handed=place.event != "return")
    if ended(way):
        return f"{said}, ended", ""
    return said, compared(way, handed=False)


def ended(way: Run) -> bool:
    """Whether it says that it is over."""
    reason = getattr(way.open, "finish_reason", None)
    return reason in ("failed", "cancelled", "closed")


class Closer:
    """What another thread does at a point. ``waits``: seconds for which it may wait for what this thread holds."""

    def __init__(self, close: Callable[[], None], waits: float) -> None:
        self._thread = threading.Thread(target=close)
        self._started = threading.Event()  # by another thread than the one that joins
        self._waits = waits

    def act(self, place: Place) -> None:
        tell(place)
        self._thread.start()
        self._started.set()
        self._thread.join(self._waits)

    def join(self) -> None:
        self._started.wait(PATIENCE)
        self._thread.join(PATIENCE)


def close_at(make: Callable[[], Run], at: int, what: str, thread: str, report: Report) -> None:
    """Another thread closes something at a point: the run ends with the right tokens, or with a beginning of them."""
    threads = threading.active_count()
    way = make()

    def close() -> None:
        if what == "cache":
            way.cache.close()
        elif way.open is not None and what == "object":
            getattr(way.open, "close", way.open.cancel if hasattr(way.open, "cancel") else None)()  # type: ignore[misc]
        elif what == "session":
            for session in sessions_of(way):
                session.close()
        elif what == "batcher" and getattr(way, "batcher", None) is not None:
            way.batcher.close()  # type: ignore[attr-defined]

    closer = Closer(close, 0.05)
    visit = Visit(closer.act, at, thread=thread)
    said, wrong = "went on", ""
    try:
        with visit:
            way.go()
    except (kv.errors.ClosedError, kv.errors.NotSupportedError):
        said = "ClosedError"
    except BaseException as raised:
        wrong = f"raised {''.join(traceback.format_exception(raised))}"
    if visit.place is None:
        way.close()
        return
    closer.join()
    if not wrong and said == "went on" and way.tokens != way.wanted:
        said = "ended"
        if any(got != want[: len(got)] for got, want in zip(way.tokens, way.wanted)):
            wrong = compared(way, handed=False)
    report.add(way, visit.place, f"closing the {what}", said, wrong or left_over(way, threads))


def sessions_of(way: Run) -> list[Any]:
    answers = getattr(way, "answers", None) or [way.open]
    generations = [getattr(each, "_generation", each) for each in answers]
    return [each.session for each in generations if getattr(each, "session", None) is not None]


def fork_at(make: Callable[[], Run], at: int, report: Report) -> None:
    """A fork at a point: the parent goes on, and in the child every call ends, by name where it is refused."""
    threads = threading.active_count()
    way = make()
    children: list[int] = []

    def act(place: Place) -> None:
        tell(place)
        child = os.fork()
        if child == 0:
            sys.settrace(None)
            signal.alarm(60)
            in_the_child(way)
        children.append(child)

    visit = Visit(act, at)
    wrong = ""
    try:
        with visit:
            way.go()
    except BaseException as raised:
        wrong = f"the parent raised {raised!r}"
    if visit.place is None:
        way.close()
        return
    status = os.waitpid(children[0], 0)[1]
    if status != 0:
        wrong = f"the child ended with {status}"
    report.add(way, visit.place, "fork", "both", wrong or compared(way, handed=True) or left_over(way, threads))


def in_the_child(way: Run) -> None:
    """Ends the process: 0 where all was well."""
    try:
        batcher = getattr(way, "batcher", None)
        calls = [way.go, way.leave, *([] if batcher is None else [batcher.stats, batcher.close])]
        for call in calls:
            try:
                call()
            except kv.errors.NotSupportedError:
                pass
            except kv.errors.ClosedError:
                pass
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(4)


class Signals:
    """SIGINTs of the system at any moment, which may be in a call of the standard library, too. Each arming takes one.

    They come so far apart that an answer gets on between them, on whatever machine.
    """

    def __init__(self, chance: random.Random, longest: float) -> None:
        self._chance = chance
        self._longest = longest  # seconds between two
        self._armed = False
        self._over = threading.Event()
        self._sender = threading.Thread(target=self._send, name="sender")

    def __enter__(self) -> Signals:
        self._before = signal.signal(signal.SIGINT, self._handle)
        self._sender.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._sender.join()
        signal.signal(signal.SIGINT, self._before)

    def during(self, work: Callable[[], None]) -> bool:
        """Whether one came."""
        try:
            self._armed = True
            work()
            self._armed = False
        except KeyboardInterrupt:
            return True
        return False

    def _handle(self, *_: object) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def _send(self) -> None:
        while not self._over.wait(self._chance.random() * self._longest):
            os.kill(os.getpid(), signal.SIGINT)


def under_signals(make: Callable[[], Run], signals: Signals, report: Report) -> None:
    """One answer, read on as often as it is interrupted."""
    way = make()
    while signals.during(way.go):
        report.outcomes["interrupts"] += 1
    report.played += 1
    wrong = compared(way, handed=True)
    if wrong and ended(way):
        report.outcomes["ended"] += 1
    else:
        report.outcomes["answers"] += 1
        report.wrong += [f"{type(way).__name__}, SIGINT: {wrong}"] if wrong else []
    way.close()


def sweep(what: str, make: Callable[[], Run], most: int, chance: random.Random, report: Report) -> None:
    if what == "signals":
        began = time.monotonic()
        counted(make, "nobody")
        with Signals(chance, time.monotonic() - began) as signals:
            for _ in range(most or 200):
                faulthandler.dump_traceback_later(HANGS, exit=True)
                under_signals(make, signals, report)
        return
    thread = INNER if "inner" in what else "MainThread"
    count = counted(make, thread)
    report.points += count
    for at in numbers(count, most, chance):
        faulthandler.dump_traceback_later(HANGS, exit=True)
        if what in ("errors", "inner"):
            error_at(make, at, ERRORS[at % len(ERRORS)], thread, report)
        elif what in ("closing", "closing inner"):
            close_at(make, at, CLOSED[at % len(CLOSED)], thread, report)
        else:
            fork_at(make, at, report)


def main(whats: str, kind: str, names: str, most: int, seed: int) -> None:
    chance = random.Random(seed)
    sys.unraisablehook = lambda _: None  # an exception that a destructor met is nobody's
    threading.excepthook = lambda _: None
    for what in whats.split(","):
        report = Report()
        for each in ways.WAYS:
            if names == "all" or each.__name__ in names.split(","):  # type: ignore[attr-defined]
                sweep(what, functools.partial(each, kind), most, chance, report)
        faulthandler.cancel_dump_traceback_later()
        print(what, report.text(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
