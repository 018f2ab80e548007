"""A process in which allocations fail on demand: failing_malloc.c, compiled, loaded, and told whose code lies where."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("failing_malloc.c")
LIBRARY = "KVTRIE_FAILING_MALLOC"  # names the library to the process that has it
MODULE, NEW, PYTHON = 1, 2, 4  # whose allocations
ANYBODY, THIS_THREAD, OTHER_THREADS = 0, 1, 2
NEVER = 1 << 60


@dataclass(frozen=True)
class Way:
    """Whose allocations fail, whether those after the first do, too, and in what process."""

    kinds: int
    who: int
    lasting: bool
    first_use: bool = False  # in a process that has made no call of the module before

    @property
    def name(self) -> str:
        whose = {MODULE | NEW: "module", NEW: "new", PYTHON: "Python"}[self.kinds]
        where = {ANYBODY: "anywhere", THIS_THREAD: "here", OTHER_THREADS: "other threads"}[self.who]
        return f"{whose} {where}{' from then on' * self.lasting}{' at first use' * self.first_use}"


WAYS = [
    Way(MODULE | NEW, ANYBODY, False),
    Way(MODULE | NEW, ANYBODY, True),
    Way(NEW, ANYBODY, False),
    Way(MODULE | NEW, OTHER_THREADS, True),
    Way(MODULE | NEW, ANYBODY, False, first_use=True),
    Way(PYTHON, THIS_THREAD, False),  # once: with every one failing the interpreter itself goes round in a circle
]


def build(folder: Path) -> Path:
    """The library that is loaded before the C library."""
    made = folder / "failing_malloc.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(SOURCE)], check=True)
    return made


def environment(library: Path) -> dict[str, str]:
    """Of a process in which allocations can fail: Python's, too, as each is a malloc of its own then."""
    return {"LD_PRELOAD": str(library), LIBRARY: str(library), "PYTHONMALLOC": "malloc", "KVTRIE_HELPER": "0"}


def start_again() -> int:
    """This program, with the failing malloc."""
    with tempfile.TemporaryDirectory() as folder:
        given = {**os.environ, **environment(build(Path(folder)))}
        return subprocess.run([sys.executable, *sys.argv], env=given, check=False).returncode


class Malloc:
    """The library, told whose code lies where."""

    def __init__(self) -> None:
        self._library = ctypes.PyDLL(os.environ[LIBRARY])  # called with the GIL held
        self._library.fail_code.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_int]
        self._library.fail_call.argtypes = [ctypes.py_object, ctypes.c_long, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        self._library.fail_call.restype = ctypes.py_object
        for name in ("fail_refused", "fail_seen", "fail_track"):
            getattr(self._library, name).restype = ctypes.c_long
        self.call = self._library.fail_call
        self.refused = self._library.fail_refused
        self.seen = self._library.fail_seen
        self.track = self._library.fail_track
        program = os.path.realpath(sys.executable)
        for line in Path("/proc/self/maps").read_text().splitlines():
            where, rights, *_, name = line.split(maxsplit=5) if line.count(" ") > 5 else (*line.split(), "")
            kind = self._kind_of(name.strip(), program)
            if "x" in rights and kind:
                self._library.fail_code(*(int(each, 16) for each in where.split("-")), kind)

    @staticmethod
    def _kind_of(name: str, program: str) -> int:
        if "/_core." in name:
            return MODULE
        if "libstdc++" in name:
            return NEW
        return PYTHON if name == program or "libpython" in name else 0
