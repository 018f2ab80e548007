"""Reading the disk tier's files: pread into host memory against copying out of a mapping.

The tier reads with pread, because a mapped read turns an I/O error, or a file that somebody cut short, into SIGBUS,
which ends the process. This is what that costs: a file of 256 MiB is read in pieces (a section of 64 tokens, a layer,
an image), from the page cache ("warm") and after the kernel was asked to forget it ("cold"). Medians of `--repeats`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable

import numpy as np

FILE_BYTES = 256 << 20
PIECES = (16 << 10, 256 << 10, 4 << 20)


def with_pread(descriptor: int, into: np.ndarray, piece: int) -> None:
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


def seconds(
    read: Callable[[int, np.ndarray, int], None], descriptor: int, piece: int, cold: bool, repeats: int
) -> float:
    into = np.ones(FILE_BYTES, np.uint8)  # its pages are there
    taken = []
    for _ in range(repeats):
        if cold:
            os.posix_fadvise(descriptor, 0, FILE_BYTES, os.POSIX_FADV_DONTNEED)
        begin = time.perf_counter()
        read(descriptor, into, piece)
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", help="where the file is made (default: the temporary folder)")
    arguments = parser.parse_args()
    with tempfile.NamedTemporaryFile(dir=arguments.folder) as file:
        file.write(np.random.default_rng(1).integers(0, 256, FILE_BYTES, np.uint8).tobytes())
        file.flush()
        os.fsync(file.fileno())
        print(f"{FILE_BYTES >> 20} MiB, GiB/s (median of {arguments.repeats})")
        print("piece       state  pread   mmap")
        for piece in PIECES:
            for cold in (False, True):
                rates = [
                    FILE_BYTES / 2**30 / seconds(read, file.fileno(), piece, cold, arguments.repeats)
                    for read in (with_pread, with_mmap)
                ]
                print(f"{piece >> 10:5d} KiB   {'cold' if cold else 'warm'}  {rates[0]:6.2f} {rates[1]:6.2f}")


if __name__ == "__main__":
    main()
