"""Sweeps over the places that a way passes, for the bridge to transformers and the chat: each place once.

What ``interruption_worker`` does at the n-th point of a run, at one point of each place: a line, a return or the
instruction behind a call. Runs pass a place many times; which time is taken is drawn.
"""

from __future__ import annotations

import importlib
import random
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import interruption_worker as sweeps
from interruption_worker import ERRORS, Report
from interruptions import PACKAGE, Place, Visit


class Listing(Visit):
    """Notes where each point is."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Place] = []

    def _point(self, frame: FrameType, event: str) -> None:
        super()._point(frame, event)
        code = frame.f_code
        self.places.append(Place(code.co_filename[len(PACKAGE) + 1 :], frame.f_lineno, code.co_name, event))


def points(make: Callable[[], Any], most: int, chance: random.Random) -> list[int]:
    """Numbers of points, from 1, of as many places in the way's ``folder`` of the package; 0 for all places."""
    once = make()
    once.go()
    once.close()
    way = make()
    listing = Listing()
    with listing:
        way.go()
    way.close()
    times: dict[Place, list[int]] = {}
    for number, place in enumerate(listing.places, 1):
        if place.file.startswith(way.folder):
            times.setdefault(place, []).append(number)
    chosen = sorted(times) if most == 0 or most >= len(times) else chance.sample(sorted(times), most)
    return sorted(chance.choice(times[place]) for place in chosen)


def sweep(what: str, ways: Sequence[Callable[[str], Any]], most: int, seed: int) -> Report:
    """``what``: "errors", "closing" or "forks", as in ``interruption_worker``."""
    report = Report()
    for number, each in enumerate(ways):
        chance = random.Random(f"{seed} {what} {number}")

        def make(each: Callable[[str], Any] = each) -> Any:
            return each(what)

        for at in points(make, most, chance):
            report.points += 1
            if what == "errors":
                sweeps.error_at(make, at, ERRORS[(at + number) % len(ERRORS)], "MainThread", report)
            elif what == "closing":
                sweeps.close_at(make, at, each.closes[at % len(each.closes)], "MainThread", report)
            else:
                sweeps.fork_at(make, at, report)
    return report


def main(what: str, kind: str, names: str, most: int, seed: int) -> None:
    """``place_sweeps.py errors|closing|forks hf|chat WAYS PLACES SEED``; prints what came of it as JSON."""
    known = importlib.import_module(f"{kind}_ways").WAYS
    chosen = [each for each in known if names == "all" or each.__name__ in names.split(",")]
    sys.unraisablehook = lambda _: None  # an exception that a destructor met is nobody's
    threading.excepthook = lambda _: None
    print(sweep(what, chosen, most, seed).text())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
