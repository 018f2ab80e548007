"""The campaign, as long as it is given: what `./dev soak` calls.

    soak.py [--minutes N] [--seed N] [NAME...]     the pieces (pieces.py), or those whose names contain a NAME

With --minutes the time is shared among the pieces, on all processors: each is played in rounds, with a fresh seed of
the master seed, and as many operations as its rate makes of its share; none is ended in the middle. One process of the
Python campaign lives all the time, for what memory does. Without --minutes each piece is played once, with the many
operations that `whole` says. At the end a table, and build/soak/SEED.json; 1 if anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Optional

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "python")]

from pieces import ROOT, Counts, Piece, counts_of, pieces
from processes import PATIENCE

SLICE = 60.0  # seconds that a round is to take
LEAST = 5.0  # seconds below which no round is begun
WARM_UP = 0.25  # of a long-lived process's samples: pools, modules and clients come into being
FLAT = 16 << 20  # bytes that a process may grow by after that, four errors off: numpy keeps up to 4 MiB of small arrays


@dataclass
class Record:
    """What came of one piece."""

    piece: str
    rounds: int = 0
    operations: int = 0
    faults: int = 0
    rows: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0
    seeds: list[int] = field(default_factory=list)
    findings: list[dict[str, str]] = field(default_factory=list)
    rate: float = 0.0  # operations in a second


class Run:
    """A child that plays one round, in a session of its own."""

    def __init__(
        self, piece: Piece, record: Record, seed: int, count: int, folder: Path, thorough: bool = False
    ) -> None:
        self.piece, self.record, self.seed, self.count = piece, record, seed, count
        self.command = piece.command(seed, count)
        self.log = folder / f"{piece.name.replace(' ', '-')}-{seed}.log"
        self.environment = {**piece.environment, **(piece.thorough if thorough else {})}
        environment = {**os.environ, "KVTRIE_CIRCLE": "test", **self.environment}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
        self.began = time.monotonic()
        expected = piece.seconds if piece.fixed or not record.rate else count / record.rate
        self.deadline = self.began + max(PATIENCE, 20 * expected)

    def over(self) -> bool:
        """Looks whether it has ended, and writes down what came of it."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid == 0:
            if time.monotonic() > self.deadline:
                self.end(signal.SIGABRT)
                self._find("hangs")
                return True
            return False
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._write_down(usage.ru_maxrss * 1024)
        return True

    def _write_down(self, peak: int) -> None:
        record, seconds = self.record, time.monotonic() - self.began
        counts = self.counts()
        record.rounds += 1
        record.operations += counts.operations
        record.faults += counts.faults
        record.rows += counts.rows
        record.seconds += seconds
        record.peak_bytes = max(record.peak_bytes, peak)
        record.seeds.append(self.seed)
        record.rate = self.count / max(seconds, 0.01)
        if self.piece.fixed:
            self.piece.seconds = seconds
        if self.process.returncode != 0:
            self._find(f"ended with {self.process.returncode}")

    def counts(self) -> Counts:
        try:
            return counts_of(self.text(), self.count)
        except (ValueError, KeyError):
            return Counts(self.count)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _find(self, what: str) -> None:
        settings = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        replay = " ".join([*settings, shlex.join(self.command)])
        self.record.findings.append({"what": what, "replay": replay, "log": str(self.log), "end": self.text()[-2000:]})
        print(f"\n  FOUND: {self.piece.name}, seed {self.seed}: {what}\n    {replay}\n    log: {self.log}", flush=True)

    def end(self, how: signal.Signals) -> None:
        """Ends it with all that it started."""
        for each in (how, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, each)
            except ProcessLookupError:
                return
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                continue


class Soak:
    """Plays pieces until the time is over, or each of them once."""

    def __init__(self, seed: int, minutes: Optional[float], chosen: list[Piece]) -> None:
        self.seed, self.seconds = seed, None if minutes is None else 60 * minutes
        self.folder = ROOT / "build/soak" / str(seed)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.dice = random.Random(seed)
        self.chosen = chosen
        self.records = {piece.name: Record(piece.name) for piece in chosen}
        self.running: list[Run] = []
        self.workers = os.cpu_count() or 1
        self.began = time.monotonic()
        self.memory: dict[str, Any] = {}

    def left(self) -> float:
        return 1e9 if self.seconds is None else self.seconds - (time.monotonic() - self.began)

    def next(self) -> Optional[Run]:
        """A round of the piece that had least so far, of those that fit in what is left."""
        busy = {run.piece.name for run in self.running}
        for piece in sorted(self.chosen, key=lambda each: (self.records[each.name].seconds, self.dice.random())):
            record = self.records[piece.name]
            if piece.name in busy or (self.seconds is None and record.rounds):
                continue
            count = self._count(piece, record)
            if count > 0:
                return Run(piece, record, self.dice.randrange(1, 10**6), count, self.folder, self.seconds is None)
        return None

    def _count(self, piece: Piece, record: Record) -> int:
        """Operations of the next round; 0: it does not fit."""
        if self.seconds is None:
            return piece.whole
        if piece.fixed:
            return int(piece.seconds < self.left())
        if self.left() < LEAST:
            return 0
        if not record.rate:
            return piece.first
        return int(record.rate * min(SLICE, self.left() * 0.9))

    def play(self) -> None:
        long_lived = self._long_lived() if self.seconds is not None else None
        try:
            while True:
                self.running = [run for run in self.running if not run.over()]
                while len(self.running) < self.workers and (run := self.next()) is not None:
                    self.running.append(run)
                if not self.running:
                    break
                time.sleep(0.2)
            if long_lived is not None:
                while not long_lived.over():
                    time.sleep(0.2)
        except KeyboardInterrupt:
            print("\n  interrupted: what was done so far", flush=True)
            for run in [*self.running, *([long_lived] if long_lived else [])]:
                run.end(signal.SIGINT)
            raise
        finally:
            if long_lived is not None:
                self._regress(long_lived)

    def _long_lived(self) -> Optional[Run]:
        """A process of the Python campaign for the whole time, beside the others."""
        found = next((piece for piece in self.chosen if piece.name == "Python campaign"), None)
        if found is None or self.left() < 4 * LEAST:
            return None

        def command(seed: int, count: int) -> list[str]:
            return [*found.command(seed, 10**12), "--seconds", str(int(self.left() - LEAST))]

        piece = Piece("Python campaign, long-lived", command, environment=found.environment, seconds=self.left())
        record = self.records[piece.name] = Record(piece.name)
        return Run(piece, record, self.dice.randrange(1, 10**6), 1, self.folder)

    def _regress(self, run: Run) -> None:
        lines = [line for line in run.text().splitlines() if line.startswith("{")]
        if not lines:
            return
        said = json.loads(lines[-1])
        samples = said["memory"][int(len(said["memory"]) * WARM_UP) :]
        if len(samples) < 8:
            return
        slope, error = line_through(samples)
        self.memory = {"samples": len(samples), "slope": slope, "error": error, "peak_bytes": said["peak_bytes"]}
        self.memory["first"], self.memory["last"] = samples[0], samples[-1]
        if grows(samples, slope - 4 * error):
            run._find(f"memory grows by {slope:.0f} bytes (error {error:.0f}) for each 1,000 operations")

    # ---- what there is to say ----

    def findings(self) -> int:
        return sum(len(record.findings) for record in self.records.values())

    def report(self, missing: list[str]) -> None:
        width = max(len(name) for name in self.records)
        head = f"  {'piece':{width}} rounds   operations       faults        rows   MiB  seeds"
        print(f"\n{head}")
        for record in self.records.values():
            seeds = ", ".join(map(str, record.seeds[:4])) + (" ..." if len(record.seeds) > 4 else "")
            found = f"  {len(record.findings)} FOUND" if record.findings else ""
            print(
                f"  {record.piece:{width}} {record.rounds:6} {record.operations:12,} {record.faults:12,} "
                f"{record.rows:11,} {record.peak_bytes >> 20:5}  {seeds}{found}"
            )
        for line in missing:
            print(f"  left out: {line}")
        for record in self.records.values():
            if record.rounds == 0:
                print(f"  not played, as it takes longer than what was left: {record.piece}")
        if self.memory:
            print(
                f"  memory of the long-lived process: {self.memory['slope']:+.0f} bytes for each 1,000 operations, "
                f"standard error {self.memory['error']:.0f}, {self.memory['samples']} samples; "
                f"at most {self.memory['peak_bytes'] >> 20} MiB"
            )
        took = (time.monotonic() - self.began) / 60
        print(f"  master seed {self.seed}, {took:.1f} minutes, {self.findings()} findings")
        result = {"seed": self.seed, "minutes": took, "memory": self.memory, "missing": missing}
        result["pieces"] = [asdict(record) for record in self.records.values()]
        path = self.folder.with_suffix(".json")
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"  {path.relative_to(ROOT)}", flush=True)


def grows(samples: list[list[int]], slope: float) -> bool:
    """Whether so many bytes for each 1,000 operations come to more than ``FLAT`` over all samples."""
    return slope * (samples[-1][0] - samples[0][0]) / 1000 > FLAT


def line_through(samples: list[list[int]]) -> tuple[float, float]:
    """(slope, its standard error) of bytes over thousands of operations, by least squares."""
    x = [operations / 1000 for operations, _ in samples]
    y = [float(size) for _, size in samples]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    spread = sum((each - mean_x) ** 2 for each in x)
    if spread == 0:
        return 0.0, 0.0
    slope = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y)) / spread
    rest = sum((b - mean_y - slope * (a - mean_x)) ** 2 for a, b in zip(x, y))
    return slope, float((rest / (len(x) - 2) / spread) ** 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a piece whose name contains it; a number: the seed")
    options = parser.parse_args()
    numbers = [name for name in options.names if name.isdigit()]
    seed = int(numbers[-1]) if numbers else options.seed
    missing: list[str] = []
    chosen = pieces([name for name in options.names if not name.isdigit()], missing, options.minutes is not None)
    if not chosen:
        parser.error(f"no piece has a name like {options.names}")
    soak = Soak(seed, options.minutes, chosen)
    limit = "each piece once" if options.minutes is None else f"{options.minutes:g} minutes"
    print(f"  {len(chosen)} pieces, {soak.workers} at a time, {limit}, master seed {seed}", flush=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    interrupted = False
    try:
        soak.play()
    except KeyboardInterrupt:
        interrupted = True
    soak.report(missing)
    return 1 if soak.findings() else 130 if interrupted else 0


if __name__ == "__main__":
    sys.exit(main())
