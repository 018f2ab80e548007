"""How does one read the disk tier's files: pread into host memory, or copying out of a mapping?

The tier reads with pread, because a mapped read turns an I/O error, or a file that somebody cut short, into SIGBUS,
which ends the process. This is what that costs: a file of 256 MiB is read in pieces (a section of 64 tokens, a layer,
an image), from the page cache ("warm") and after the kernel was asked to forget it ("cold"). Both in turns.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from report import Report, Rows, arguments
from timing import Race, race

FILE_BYTES = 256 << 20
PIECES = (16 << 10, 256 << 10, 4 << 20)
Read = Callable[[int, np.ndarray, int], None]


def with_pread(descriptor: int, into: np.ndarray, piece: int) -> None:
    """One system call for each piece."""
    view = memoryview(into)
    for offset in range(0, FILE_BYTES, piece):
        got = os.preadv(descriptor, [view[offset : offset + piece]], offset)
        assert got == piece


def with_mmap(descriptor: int, into: np.ndarray, piece: int) -> None:
    """A mapping for each read of the file, as the tier would make one: how long it stays is nobody's decision."""
    with mmap.mmap(descriptor, FILE_BYTES, prot=mmap.PROT_READ) as mapped:
        source = np.frombuffer(mapped, np.uint8)
        for offset in range(0, FILE_BYTES, piece):
            into[offset : offset + piece] = source[offset : offset + piece]
        del source


def compare(descriptor: int, piece: int, cold: bool, rounds: int) -> Race:
    """Seconds for the whole file, both ways."""
    into = np.ones(FILE_BYTES, np.uint8)  # its pages are there

    def seconds(read: Read) -> float:
        if cold:
            os.posix_fadvise(descriptor, 0, FILE_BYTES, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        read(descriptor, into, piece)
        return time.perf_counter() - begin

    sides = {"pread": lambda: seconds(with_pread), "mmap": lambda: seconds(with_mmap)}
    return race(sides, rounds=rounds, warm_up=1, clocked=sides)


def main() -> None:
    """A row for each piece and state of the page cache."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where the file is made (default: the temporary folder)")
    options = parser.parse_args()
    report = Report(f"reading a file of {FILE_BYTES >> 20} MiB: pread beside a mapping", options.json)
    report.note("piece       state   pread   mmap GiB/s   mmap's time over pread's")
    with tempfile.NamedTemporaryFile(dir=options.folder) as file:
        file.write(np.random.default_rng(1).integers(0, 256, FILE_BYTES, np.uint8).tobytes())
        file.flush()
        os.fsync(file.fileno())
        for piece in PIECES:
            for state in ("warm", "cold"):
                result = compare(file.fileno(), piece, state == "cold", options.rounds)
                ratio = result.ratio("mmap", to="pread")
                rates = {side: FILE_BYTES / 2**30 / result[side].median for side in ("pread", "mmap")}
                report.row(
                    f"{piece >> 10:5d} KiB   {state}  {rates['pread']:6.2f} {rates['mmap']:6.2f}         {ratio}",
                    piece=piece,
                    state=state,
                    pread=result["pread"],
                    mmap=result["mmap"],
                    rates=rates,
                    ratio=ratio,
                )
    report.close(draw)


def draw(axes: Any, rows: Rows) -> None:
    """GiB/s for each piece and state, both ways."""
    for place, side in enumerate(("pread", "mmap")):
        at = [index + 0.4 * place - 0.2 for index in range(len(rows))]
        axes.bar(at, [row["rates"][side] for row in rows], 0.38, label=side)
    axes.set_xticks(range(len(rows)), [f"{row['piece'] >> 10} KiB\n{row['state']}" for row in rows])
    axes.set(ylabel="GiB/s", xlabel="bytes of one read; is the file in the page cache?")
    axes.legend()


if __name__ == "__main__":
    main()
