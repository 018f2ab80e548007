"""What bench_memory.py counts with, and memory that goes back to the system once a model is loaded."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from kvtrie.models.freed import give_back

sys.path.append(str(Path(__file__).parents[2] / "bench"))

import process_memory

SMAPS = """\
55e0-55f0 rw-p 00000000 00:00 0                          [heap]
Rss:                2048 kB
Pss:                1024 kB
Pss_Dirty:           512 kB
7f00-7f10 rw-p 00000000 00:00 0
Rss:                1024 kB
7f10-7f20 r-xp 00000000 08:01 77                         /usr/lib/x86_64-linux-gnu/libLLVM-15.so.1
Rss:                3072 kB
7f20-7f30 r--s 00000000 08:01 78                         /models/a model.gguf
Rss:                 512 kB
VmFlags: rd mr
7f30-7f40 r-xp 00000000 08:01 79                         /usr/lib/libc.so.6
Rss:                 256 kB
"""


def test_parts_of_a_process() -> None:
    found = process_memory.parse(SMAPS)
    assert found == {
        process_memory.ANONYMOUS: 3.0,
        "driver and its compiler": 3.0,
        "model file": 0.5,
        process_memory.OTHER: 0.25,
    }
    with_all = process_memory.of(os.getpid())
    assert with_all[process_memory.ANONYMOUS] > 1 and list(with_all.values()) == sorted(with_all.values())[::-1]


def test_freed_memory_goes_back_to_the_system() -> None:
    """32 MiB in blocks of 8 KiB, all freed but the last one, which holds the end of the heap in its place."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):  # another C library: nothing to do, and no error
        return give_back()
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    size, count = 8192, 4096
    blocks = [library.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:
        library.free(block)
    before = process_memory.of(os.getpid())[process_memory.ANONYMOUS]
    give_back()
    after = process_memory.of(os.getpid())[process_memory.ANONYMOUS]
    library.free(blocks[-1])
    assert before - after > size * count / 2**20 / 2
    return None
