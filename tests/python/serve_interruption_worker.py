"""Sweeps over the points that requests pass: `serve_interruption_worker.py WHAT WAYS POINTS SEED`; prints JSON.

WHAT, of requests to a server:
    errors     an exception in the event loop's thread; "watched": while a page looks on; "fleet": behind an ingress
    threads    one in a thread where texts are made; "cold": no memory there in a server's first request
    steps      one in a callback of the batcher's thread
    leaving    the client leaves behind each message
    closing    another thread closes the batcher, the cache, or all of it
and of a router's events ("routes"), of blocks of Ray's batches ("rows", "scores") and of a server's end ("closes").

WAYS: names joined by commas, or "all". POINTS: how many of each way's are tried, 0 for all. A request that hangs is
reported; where all hangs, the process ends by itself, and the last line before the stacks on stderr says where.

Afterwards a request has the answer of an undisturbed one, or an error with a status and a name, or its connection
broke, which its client sees. Then the same request has that answer, and nothing of the first one is left.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from interruption_worker import ERRORS, Boom, Closer, Report, numbers, tell
from interruptions import Place, Visit
from serve_ways import HANGS, WAYS, Call, House, Told, Way, told

OURS = ("serve",)  # where a callback of the batcher's thread is


class Sweep:
    """One way's points; ``most`` of them are tried."""

    def __init__(
        self, way: Way, most: int, chance: random.Random, report: Report, make: Callable[[], House] = House
    ) -> None:
        self.way, self.most, self.chance, self.report = way, most, chance, report
        self.make = make
        self.house = make()
        self.wanted = self.known()

    def known(self) -> Told:
        """What an undisturbed request is told; the second time everything is as it will be."""
        for _ in range(2):
            told_now = told(self.house.ask(Call(self.way)))
        return told_now

    def anew(self) -> None:
        """Another house, in which nothing was asked yet."""
        self.house.close()
        self.house = self.make()

    def points(self, visit: Visit) -> Iterator[int]:
        with visit:
            self.house.ask(Call(self.way))
        self.report.points += visit.count
        yield from numbers(visit.count, self.most, self.chance)

    def compare(self, call: Call, place: Place, how: str) -> None:
        """Records what was told, what is left, and what the next request is told."""
        outcome, wrong = judged(told(call), self.wanted, call)
        call.raised = None
        wrong = wrong or self.house.left_over()
        if not wrong:
            again = self.house.ask(Call(self.way))
            if told(again) != self.wanted:
                wrong = f"the next request was told {told(again)}, raised {again.raised!r}"
        self.report.add(self.house, place, how, outcome, wrong and f"{self.way.name}: {wrong}")
        if wrong:
            self.house = self.make()
            self.known()

    # --- what is done at a point ------------------------------------------------------------------------------------

    def errors(self) -> None:
        for at in self.points(Visit()):
            self.error(Call(self.way), Visit, at, ERRORS[at % len(ERRORS)])

    def threads(self) -> None:
        """Threads that exist are not traced, so each run has new ones."""
        self.executor()
        for at in self.points(Visit(thread="texts")):
            self.executor()
            self.error(Call(self.way), lambda act, at: Visit(act, at, thread="texts"), at, (MemoryError, Boom)[at % 2])

    def cold(self) -> None:
        """The same in the first request of all, which finds out what the template reads and makes the vocabulary."""
        self.anew()
        self.executor()
        for at in self.points(Visit(thread="texts")):
            self.anew()
            self.executor()
            self.error(Call(self.way), lambda act, at: Visit(act, at, thread="texts"), at, MemoryError)

    def steps(self) -> None:
        """The batcher's thread begins with the first request."""
        self.anew()
        for at in self.points(Visit(thread="kvtrie-batcher", folders=OURS)):
            self.anew()
            visit = lambda act, at: Visit(act, at, thread="kvtrie-batcher", folders=OURS)  # noqa: E731
            self.error(Call(self.way), visit, at, ERRORS[at % len(ERRORS)])

    def leaving(self) -> None:
        messages = self.house.ask(Call(self.way)).passed
        self.report.points += messages + 1
        for at in range(messages + 1):
            faulthandler.dump_traceback_later(120, exit=True)
            call = self.house.ask(Call(self.way, leaves=at))
            self.compare(call, Place("a client", at, self.way.name, "message"), "leaving")

    def closing(self) -> None:
        for at in self.points(Visit()):
            self.close_at(at, ("batcher", "cache", "all")[at % 3])
            self.house = self.make()
            self.known()

    def executor(self) -> None:
        self.house.loop.set_default_executor(ThreadPoolExecutor(2, thread_name_prefix="texts"))

    def error(
        self, call: Call, visit: Callable[[Callable[[Place], None], int], Visit], at: int, error: type[BaseException]
    ) -> None:
        faulthandler.dump_traceback_later(120, exit=True)

        def act(place: Place) -> None:
            tell(place)
            raise error("placed")

        seen = visit(act, at)
        with seen:
            self.house.ask(call)
        if seen.place is not None:
            self.compare(call, seen.place, error.__name__)

    def close_at(self, at: int, what: str) -> None:
        faulthandler.dump_traceback_later(120, exit=True)
        house, call = self.house, Call(self.way)
        closed = {"batcher": house.engine.batcher.close, "cache": house.cache.close, "all": house.engine.close}[what]
        closer = Closer(closed, 0.5)
        visit = Visit(closer.act, at)
        with visit:
            house.ask(call)
        if visit.place is None:
            return house.close()
        closer.join()
        outcome, wrong = judged(told(call), self.wanted, call)
        call.raised = None
        wrong = wrong or house.left_over() or refused(told(house.ask(Call(self.way))), self.wanted)
        self.report.add(house, visit.place, f"closing {what}", outcome, wrong and f"{self.way.name}: {wrong}")
        house.close()


def judged(got: Told, wanted: Told, call: Call) -> tuple[str, str]:
    """(outcome, what is wrong)."""
    if got == wanted:
        return "right", ""
    if got.kind == "error":
        return f"error {got.status}", ""
    if got.kind in ("broken", "nothing"):
        return got.kind if call.raised is None else f"{got.kind}, {type(call.raised).__name__}", ""
    return got.kind, f"was told {got}, want {wanted}"


def refused(got: Told, wanted: Told) -> str:
    """What is wrong with an answer of a server that is closed: some need no batcher and no cache."""
    return "" if got == wanted or got.kind == "error" else f"told {got} when it is closed"


def routes(events: int, most: int, chance: random.Random, report: Report) -> None:
    """A router is interrupted in some of its events; each is told again, and at last it knows what it was told."""
    from fleet_ways import Desk

    def points(seed: int) -> int:
        desk = Desk(seed)
        with Visit(folders=("ray/scale",)) as visit:
            for _ in range(events):
                desk.event()()
        return visit.count

    count = points(1)
    report.points += count
    for at in numbers(count, most, chance):
        faulthandler.dump_traceback_later(120, exit=True)
        desk, places = Desk(at % 20), []

        def act(place: Place, at: int = at, places: list[Place] = places) -> None:
            places.append(place)
            raise ERRORS[at % len(ERRORS)]("placed")

        with Visit(act, at, folders=("ray/scale",)):
            for _ in range(events):
                event = desk.event()
                try:
                    event()
                except BaseException:
                    event()
        if places:
            wrong = desk.wrong()
            report.add(desk, places[0], "an exception", "told again", wrong)


def rows(scoring: bool, most: int, chance: random.Random, report: Report) -> None:
    """An actor of Ray's is interrupted in a block, and does it again, as Ray has it do."""
    from fleet_ways import table_of, worker_of

    table, worker = table_of(), worker_of(scoring)
    worker(table)  # then as much is known as in every later run
    wanted = rows_of(worker(table))
    with Visit() as visit:
        worker(table)
    report.points += visit.count
    for at in numbers(visit.count, most, chance):
        faulthandler.dump_traceback_later(120, exit=True)
        error, places, got = ERRORS[at % len(ERRORS)], [], None

        def act(place: Place, error: type[BaseException] = error, places: list[Place] = places) -> None:
            places.append(place)
            tell(place)
            raise error("placed")

        wrong = ""
        try:
            with Visit(act, at):
                got = rows_of(worker(table))
        except BaseException as raised:
            if not (isinstance(raised, error) or "placed" in repr(raised) or "fits into memory" in str(raised)):
                wrong = f"raised {raised!r}"
        if places:
            wrong = wrong or ("" if got in (None, wanted) else f"got {got}, want {wanted}")
            wrong = wrong or left_in_a_worker(worker)
            again = wrong or rows_of(worker(table))
            if not wrong and again != wanted:
                wrong = f"then got {again}, want {wanted}"
            report.add(worker, places[0], error.__name__, "raised" if got is None else "right", wrong)
    worker.close()


def rows_of(table: Any) -> Any:
    """Without what depends on what is known already."""
    return [{name: value for name, value in row.items() if name != "reused"} for row in table.to_pylist()]


def left_in_a_worker(worker: Any) -> str:
    gc.collect()
    end = time.monotonic() + HANGS
    while hasattr(worker, "batcher") and (counts := worker.batcher.stats())["active"] + counts["waiting"]:
        if time.monotonic() > end:
            return f"requests are left: {counts}"
        time.sleep(0.001)
    sessions, found = worker.cache.stats()["sessions"], worker.cache.check()
    return f"{sessions} sessions, check: {found}" if sessions or found else ""


def closes(most: int, chance: random.Random, report: Report) -> None:
    """What closes a server is interrupted and called again: its folder is another one's to open then."""
    with tempfile.TemporaryDirectory() as folder:
        count = close_interrupted(folder, 0, report)
    report.points += count
    for at in numbers(count, most, chance):
        faulthandler.dump_traceback_later(120, exit=True)
        with tempfile.TemporaryDirectory() as folder:
            close_interrupted(folder, at, report)


def close_interrupted(folder: str, at: int, report: Report) -> int:
    """Its points."""
    house, error = House(disk=folder), ERRORS[at % len(ERRORS)]
    house.ask(Call(WAYS[0]))

    def act(place: Place) -> None:
        tell(place)
        raise error("placed")

    visit = Visit(act, at)
    with contextlib.suppress(error), visit:
        house.engine.close()
    was_closed = house.cache.closed
    house.engine.close()
    again = House(disk=folder)
    known = again.cache.stats()["disk_tokens"]
    wrong = "" if house.cache.closed and known else f"closed: {house.cache.closed}, {known} tokens are on disk"
    again.close()
    house.close()
    if visit.place is not None:
        report.add(house, visit.place, error.__name__, f"closed at once: {was_closed}", wrong)
    return visit.count


def fleet() -> Callable[[], House]:
    """Behind an ingress; needs Ray."""
    from fleet_ways import Fleet

    return Fleet


def main(what: str, names: str, most: int, seed: int) -> None:
    chance = random.Random(seed)
    report = Report()
    sys.unraisablehook = lambda _: None  # an exception that a destructor met is nobody's
    threading.excepthook = lambda _: None
    logging.disable(logging.CRITICAL)
    gc.collect()
    gc.freeze()
    if what in ("routes", "rows", "scores", "closes"):
        more = {"routes": lambda: routes(40, most, chance, report), "closes": lambda: closes(most, chance, report)}
        more.get(what, lambda: rows(what == "scores", most, chance, report))()
    houses = {"watched": lambda: House(True), **({"fleet": fleet()} if what == "fleet" else {})}
    for way in WAYS:
        if (hasattr(Sweep, what) or what in houses) and (names == "all" or way.name in names.split(",")):
            sweep = Sweep(way, most, chance, report, houses.get(what, House))
            getattr(sweep, "errors" if what in houses else what)()
            sweep.house.close()
    faulthandler.cancel_dump_traceback_later()
    print(report.text())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
