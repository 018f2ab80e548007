"""Allocations that fail, one after the other, in every public call of the core.

    allocation_sweep.py                            every allocation of every call, each way
    allocation_sweep.py begin Session --count 300  300 points drawn from those of calls whose names contain a NAME
    allocation_sweep.py --seed 7 --count 2000      of all calls

Concept. A *point* is a call in a world (allocation_calls.py), a way to fail and a number n: the nth allocation fails
once, or it and all that follow until the call has returned. Ways differ in whose allocations count (failing_malloc.c):
those of the module and of operator new, of operator new alone, of Python. For each point a world is made, the call is
made, and then has to hold:

- the call gave what it gives undisturbed, or raised MemoryError or an error of the library other than InternalError;
- nothing is wrong with the world (``whole``), and a refused call gives its answer when it is made again;
- the world goes on, with rows that are checked one by one, and gives everything back when it ends;
- no block is held afterwards that an undisturbed run does not hold (where it is not a process's first call).

Points are played by children, one point after the other in each; a child that dies or does not come back is a finding
of the point that it was at, and another goes on behind that. The last line is JSON: points, how calls ended, findings.
The exit status is 1 if there were any.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from allocation_malloc import LIBRARY, NEVER, PYTHON, WAYS, Malloc, Way, start_again

PATIENCE = 120  # seconds that a point may take on the slowest machine
EACH = 4  # points of a series, where they are drawn
LOOKS = 3  # how often a point is played again that left blocks behind


# ---- one point ----


def shown(value: Any) -> Any:
    """A result as something that can be compared and written down."""
    import numpy as np

    import kvtrie as kv

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return "a number"  # of a clock
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    if isinstance(value, dict):
        return {str(name): shown(each) for name, each in value.items()}
    if isinstance(value, (np.ndarray, kv.Tensor)):
        return np.asarray(value).tolist()
    if isinstance(value, kv._core.Session):
        return [value.matched, value.reused, value.length, value.recorded]
    if isinstance(value, kv._core.Step):
        return [value.tokens.tolist(), value.positions.tolist(), value.complete]
    if isinstance(value, kv._core.ReusePlan):
        return [value.matched, value.reusable, value.tier, value.bytes_moved]
    return type(value).__name__


class Player:
    """Plays points in this process."""

    def __init__(self, malloc: Malloc) -> None:
        self.malloc = malloc

    def attempt(self, call: Callable[[], Any], way: Way, nth: int) -> tuple[str, Any, int]:
        """How it ended, what it gave, and how many allocations failed."""
        import kvtrie as kv

        given: Any = None
        try:
            given = self.malloc.call(call, nth, way.lasting, way.kinds, way.who)
            ended = "answered"
        except MemoryError:
            ended = "MemoryError"
        except kv.errors.InternalError as error:
            ended = f"wrong: InternalError: {error}"
        except kv.Error as error:
            ended = type(error).__name__
        except Exception as error:
            ended = f"wrong: {type(error).__name__}: {error}"
        return ended, given, self.malloc.refused()

    def count(self, call: Any, world: str, way: Way) -> tuple[int, Any]:
        """How many allocations it makes undisturbed, and its answer."""
        made = self._world(world)
        prepared = call.prepare(made)
        made.about_to_call()
        ended, given, _ = self.attempt(prepared, way, NEVER)
        seen = self.malloc.seen()
        assert ended == "answered", f"undisturbed: {ended}"
        answer = shown(given)
        self._finish(made)
        return seen, answer

    def left_by(self, *point: Any) -> tuple[str, int]:
        """How a point ended, and how many blocks more are held than before it."""
        before = self.malloc.track()
        ended = self._play(*point)
        gc.collect()
        return ended, self.malloc.track() - before

    def play(self, call: Any, world: str, way: Way, nth: int, answer: Any) -> str:
        """How it ended; "wrong: ..." where something does not hold."""
        point = (call, world, way, nth, answer)
        try:
            ended, left = self.left_by(*point)
            for _ in range(LOOKS):  # what libraries keep, they do not take again each time
                if left <= 0:
                    break
                left = self.left_by(*point)[1]
            return f"wrong: {left} blocks are held afterwards" if left > 0 else ended
        except BaseException as error:
            return f"wrong: {type(error).__name__}: {error}\n{traceback.format_exc()}"

    def play_once(self, *point: Any) -> str:
        """The same, whatever is held afterwards."""
        try:
            return self._play(*point)
        except BaseException as error:
            return f"wrong: {type(error).__name__}: {error}\n{traceback.format_exc()}"

    def _play(self, call: Any, world: str, way: Way, nth: int, answer: Any) -> str:
        made = self._world(world)
        prepared = call.prepare(made)
        made.about_to_call()
        ended, given, failed = self.attempt(prepared, way, nth)
        if ended.startswith("wrong"):
            return ended
        found = made.whole()
        assert found == [], f"whole: {found}"
        self._again(call, made, prepared, ended == "answered", given, answer)
        del prepared, given
        self._finish(made)
        return ended if failed else "nothing failed"

    @staticmethod
    def _again(call: Any, made: Any, prepared: Callable[[], Any], answered: bool, given: Any, answer: Any) -> None:
        """The call once more, where it has to give its answer now."""
        from allocation_table import Then

        made.kept.append(given)
        if answered and (shown(given) == answer or call.then is Then.PART):
            return
        assert not answered or call.then is Then.LESS, f"answered: got {shown(given)}, allowed {answer}"
        if call.then in (Then.ONCE, Then.MODEL):
            return
        if given is not None and hasattr(given, "close"):
            given.close()
        made.kept.append(prepared())
        found = shown(made.kept[-1])
        assert call.then is Then.PART or found == answer, f"again: got {found}, allowed {answer}"

    @staticmethod
    def _world(name: str) -> Any:
        from allocation_worlds import WORLDS

        return WORLDS[name]()

    @staticmethod
    def _finish(made: Any) -> None:
        found = made.whole()
        assert found == [], f"whole: {found}"
        made.goes_on()
        made.end()


# ---- children ----


@dataclass(frozen=True)
class Series:
    """The points of one call in one world, one way. ``most``: how many of them are drawn; 0: all."""

    call: Any
    world: str
    way: Way
    most: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.call.name} ({self.world}), {self.way.name}"

    def numbers(self, count: int) -> list[int]:
        if not self.most or count <= self.most:
            return list(range(1, count + 1))
        return sorted(random.Random(self.seed).sample(range(1, count + 1), self.most))


class Child:
    """Plays series in a process of its own, from a point on, and says what came of each."""

    def __init__(self, player: Player, series: Sequence[Series], said: Any) -> None:
        self.player, self.series, self._said = player, series, said

    def say(self, *words: Any) -> None:
        print(json.dumps(words), file=self._said, flush=True)

    def play(self, first: int, behind: int) -> None:
        for index in range(first, len(self.series)):
            self.say("at", index, 0)
            signal.alarm(PATIENCE)
            try:
                self._play(index, behind if index == first else 0)
            except BaseException as error:
                self.say("ended", index, f"wrong: undisturbed: {type(error).__name__}: {error}")
        signal.alarm(0)

    def _play(self, index: int, behind: int) -> None:
        series = self.series[index]
        point = series.call, series.world, series.way
        if series.way.first_use:
            return self._play_apart(index, behind, *point)
        self.player.count(*point)  # a device's compiler, the first time, makes some 100,000 that no later call makes
        count, answer = self.player.count(*point)
        self.player.play(*point, NEVER, answer)  # what libraries keep from now on was allocated by it
        for nth in series.numbers(count):
            if nth > behind:
                self.say("at", index, nth)
                signal.alarm(PATIENCE)
                self.say("ended", index, self.player.play(*point, nth, answer))

    def _play_apart(self, index: int, behind: int, *point: Any) -> None:
        """Each in a process of its own, which is why blocks that it leaves are not counted."""
        (count, answer), status = apart(lambda: self.player.count(*point))
        assert status == 0, how_it_died(status)
        for nth in self.series[index].numbers(count):
            if nth > behind:
                self.say("at", index, nth)
                ended, status = apart(lambda nth=nth: self.player.play_once(*point, nth, answer))  # type: ignore[misc]
                self.say("ended", index, ended if status == 0 else how_it_died(status))


def apart(work: Callable[[], Any]) -> tuple[Any, int]:
    """What it gives in a child of its own, and the child's status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(PATIENCE)
            with os.fdopen(writing, "w") as said:
                json.dump(work(), said)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as said:
        text = said.read()
    return json.loads(text) if text else (0, None), os.waitpid(child, 0)[1]


def in_child(player: Player, series: Sequence[Series], first: int, behind: int) -> tuple[list[Any], int]:
    """What a child said that played from there on, and its status."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what C++ says about an end is in the finding
        with os.fdopen(writing, "w") as said:
            Child(player, series, said).play(first, behind)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as said:
        lines = [json.loads(line) for line in said]
    return lines, os.waitpid(child, 0)[1]


def how_it_died(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"ended with {os.WEXITSTATUS(status)}"
    number = signal.Signals(os.WTERMSIG(status))
    return "stuck" if number == signal.SIGALRM else f"died of {number.name}"


@dataclass
class Found:
    """What came of all points."""

    points: int
    ended: Counter[str]
    findings: list[str]

    def add(self, series: Series, nth: int, what: str) -> None:
        self.points += 1
        self.ended[what.split(":")[0]] += 1
        if what.startswith(("wrong", "died", "stuck", "ended")):
            self.findings.append(f"{series.name}, allocation {nth}: {what}")
            print(self.findings[-1], flush=True)


def sweep(series: Sequence[Series]) -> Found:
    """Plays all; a child after another, where one died."""
    found = Found(0, Counter(), [])
    player = Player(Malloc())
    gc.collect()
    gc.freeze()
    first = behind = 0
    while first < len(series):
        said, status = in_child(player, series, first, behind)
        for what, index, value in said:
            if what == "at":
                first, behind = index, value
            else:
                found.add(series[index], behind, value)
        if status == 0:
            break
        found.add(series[first], behind, how_it_died(status))
        if behind == 0:
            first += 1
    return found


def series_of(names: Sequence[str], count: int, seed: int, ways: Sequence[Way], host: bool) -> list[Series]:
    """Every call in each of its worlds, each way; or so many that ``count`` points come of them."""
    from allocation_calls import CALLS, ENDS_BY_ITSELF
    from allocation_table import Then

    dice = random.Random(seed)
    wanted = [call for call in CALLS if not names or any(name in call.name for name in names)]
    if "ends by itself" in names:
        wanted.append(ENDS_BY_ITSELF)
    every = [
        (call, world, way)
        for call in wanted
        for world in call.worlds
        for way in ways
        if not (way.kinds == PYTHON and call.then is Then.MODEL)
        and not (world == "device" and (host or way.first_use))  # to open one takes a second
    ]
    every.sort(key=lambda each: not each[2].first_use)  # before their child has made a call
    if not count:
        return [Series(*each, 0, 0) for each in every]
    some = [every[at] for at in sorted(dice.sample(range(len(every)), min(len(every), max(1, count // EACH))))]
    return [Series(*each, EACH, dice.randrange(1 << 30)) for each in some]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="calls whose names contain one of these")
    parser.add_argument("--count", type=int, default=0, help="points that are drawn; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", type=int, action="append", choices=range(len(WAYS)), help="by number; all")
    parser.add_argument(
        "--host", action="store_true", help="without the world that opens a device, which takes seconds"
    )
    chosen = parser.parse_args()
    if LIBRARY not in os.environ:
        return start_again()
    ways = [WAYS[number] for number in chosen.way] if chosen.way else WAYS
    found = sweep(series_of(chosen.names, chosen.count, chosen.seed, ways, chosen.host))
    print(
        json.dumps(
            {
                "operations": found.points,
                "faults": found.points,
                "ended": dict(found.ended.most_common()),
                "findings": len(found.findings),
            }
        )
    )
    return int(bool(found.findings))


if __name__ == "__main__":
    sys.exit(main())
