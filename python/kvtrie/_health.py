"""Findings about an installation without its core: is it built, and are the libraries there that it needs.

Imports the standard library alone, since it runs where numpy or the core cannot be imported. ``python -m kvtrie`` comes
here when the core does not load; ``doctor`` says the same, and more.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from . import _opencl

OK, NOTE, MISSING = "ok", "note", "MISSING"
# (library, Debian package that carries it, what it is for)
LIBRARIES = (
    ("libOpenCL.so.1", "ocl-icd-libopencl1", "the OpenCL loader"),
    ("libclblast.so.1", "libclblast1", "matrix products on GPUs"),
)
DRIVER_PACKAGE = "pocl-opencl-icd"
EXTRA = "pip install 'kvtrie[cpu]'"
_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Finding:
    """One checked fact; ``advice`` says what to do when ``state`` is not "ok", ``package`` what Debian has for it."""

    state: str
    what: str
    detail: str
    advice: str = ""
    package: str = ""


def write(findings: Iterator[Finding], out: TextIO) -> int:
    """Writes them and the one command that mends what is missing; the exit code."""
    found = []
    for finding in findings:
        found.append(finding)
        out.write(f"{finding.state:<8} {finding.what:<22} {finding.detail}\n")
        if finding.advice:
            out.write(f"{'':<8} {'':<22} -> {finding.advice}\n")
        out.flush()
    missing = [finding for finding in found if finding.state == MISSING]
    out.write(f"{len(missing)} missing\nto mend it: {remedy(missing)}\n" if missing else "everything is in place\n")
    return 1 if missing else 0


def remedy(missing: Sequence[Finding]) -> str:
    """One command. Libraries come first: without them nothing else can be told."""
    if any(finding.advice.startswith(EXTRA) for finding in missing):
        return EXTRA  # brings numpy, loader and driver
    packages = list(dict.fromkeys(finding.package for finding in missing if finding.package))
    if packages:
        return f"apt-get install {' '.join(packages)}"
    return next((finding.advice for finding in missing if finding.advice), "see above")


def basics() -> Iterator[Finding]:
    """First the things that the core needs, then the core: a fault in one explains those behind it."""
    yield Finding(OK, "Python", f"{platform.python_version()}, {platform.machine()}, {sys.executable}")
    for library, package, purpose in needed_libraries():
        yield _library(library, package, purpose)
    yield from _drivers()
    yield _importable("numpy", "pip install numpy")
    yield _core()


def needed_libraries() -> list[tuple[str, str, str]]:
    """Those of LIBRARIES that the built core names; all of them where none is built. A wheel has CLBlast left out."""
    built = [file.read_bytes() for file in _HERE.glob("_core*.so")]
    return [row for row in LIBRARIES if not built or any(row[0].encode() in core for core in built)]


def driver_advice() -> tuple[str, str]:
    """(advice, Debian package) where there is no driver. Packages from pip are mended by pip, without root."""
    if in_source_tree() or platform.machine() != "x86_64":
        return f"apt-get install {DRIVER_PACKAGE} (a CPU device), or the OpenCL driver of your GPU", DRIVER_PACKAGE
    return f"{EXTRA} (Intel's CPU driver, proprietary), or {DRIVER_PACKAGE}, or the OpenCL driver of your GPU", ""


def in_source_tree() -> bool:
    return (_HERE.parents[1] / "dev").is_file()


def _library(library: str, package: str, purpose: str) -> Finding:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        advice, debian = f"apt-get install {package}", package
        if library == _opencl.LOADER and not in_source_tree():
            advice, debian = driver_advice()
        return Finding(MISSING, library, f"{purpose}: {error}", advice, debian)
    return Finding(OK, library, purpose)


def _drivers() -> Iterator[Finding]:
    """The installable client drivers that the OpenCL loader will look at."""
    files = _opencl.system_drivers()
    named = [_named_driver(library) for library in _opencl.named_drivers() if Path(library) not in files]
    if not files and not any(finding.state == OK for finding in named):
        folder = os.environ.get(_opencl.NAMES[0]) or _opencl.VENDORS
        yield Finding(MISSING, "OpenCL driver", f"no .icd file in {folder}", *driver_advice())
    yield from named
    for file in files:
        try:
            library = _opencl.library_of(file)
            ctypes.CDLL(library)
        except (OSError, UnicodeDecodeError) as error:
            again = "install that driver again, or remove the file"
            if file == _opencl.packaged_driver():  # the only one there is
                yield Finding(MISSING, "OpenCL driver", f"{_opencl.PACKAGE}: {error}", EXTRA)
            else:
                yield Finding(NOTE, "OpenCL driver", f"{file.name}: {error}", again)
            continue
        yield Finding(OK, "OpenCL driver", f"{file.name}: {library}")


def _named_driver(library: str) -> Finding:
    """One that the environment names, and no .icd file."""
    name = _opencl.NAMES[1]
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return Finding(NOTE, "OpenCL driver", f"{name}: {error}", f"take it out of {name}")
    if not _opencl.loader_knows(name):
        advice = f"set {_opencl.NAMES[0]} to a folder with an .icd file that names it"
        return Finding(NOTE, "OpenCL driver", f"{name}: {library}, which this loader does not look at", advice)
    return Finding(OK, "OpenCL driver", f"{name}: {library}")


def _importable(name: str, advice: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        return Finding(MISSING, f"python: {name}", str(error), advice)
    return Finding(OK, f"python: {name}", str(getattr(module, "__version__", "")))


def _core() -> Finding:
    """Whether the compiled module loads; if not, why, and what to do."""
    build = "./dev build" if in_source_tree() else "pip install --force-reinstall kvtrie"
    try:
        module = importlib.import_module("kvtrie._core")
    except ImportError as error:
        library = re.match(r"(lib[\w.+-]+): cannot open shared object", str(error))
        if library is not None:  # reported above where the package is known
            known = {name: package for name, package, _ in LIBRARIES}
            package = known.get(library[1], "")
            advice = f"apt-get install {package}" if package else f"install what has {library[1]}"
            return Finding(MISSING, "kvtrie._core", str(error), advice, package)
        built = sorted(file.name for file in _HERE.glob("_core*.so"))
        detail = f"{error}; there is {', '.join(built)}" if built else "it is not built"
        return Finding(MISSING, "kvtrie._core", detail, build)
    return Finding(OK, "kvtrie._core", str(module.__version__))


def runs_as_command() -> bool:
    """Whether this import is that of ``python -m kvtrie``."""
    words = getattr(sys, "orig_argv", ["-m", "kvtrie"])  # since Python 3.10
    return sys.argv[:1] == ["-m"] and any(pair == ("-m", "kvtrie") for pair in zip(words, words[1:]))
