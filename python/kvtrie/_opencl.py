"""Finds OpenCL where the system has no driver: the one for CPUs that ``pip install kvtrie[cpu]`` brings.

Its files lie in the environment's own folders, where no OpenCL loader looks. Called before the core is loaded.
Where the system has a driver, or the environment names some, nothing changes. The standard library alone is imported.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Optional

PACKAGE = "intel-opencl-rt"
DRIVER = "libintelocl.so"
LOADER = "libOpenCL.so.1"
# Libraries that the packaged loader needs, each after its own needs: they lie beside it, where it does not look.
BESIDE_LOADER = ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so")
VENDORS = "/etc/OpenCL/vendors"
NAMES = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # a folder, for every loader; libraries, for Khronos' alone


def prepare() -> None:
    """Makes the loader see the packaged driver, and opens the packaged loader where the system has none."""
    driver = packaged_driver()
    if driver is None:
        return
    if not any(os.environ.get(name) for name in NAMES) and not any(map(is_there, system_drivers())):
        for name in NAMES:
            os.environ[name] = str(driver)
    if not opens(LOADER):
        for name in (*BESIDE_LOADER, LOADER):  # from now on they are found by their names
            opens(str(driver.with_name(name)))


def packaged_driver() -> Optional[Path]:
    """The file DRIVER of PACKAGE, if it is installed here."""
    folders = (Path(folder or ".").glob(f"{PACKAGE.replace('-', '_')}-*.dist-info") for folder in sys.path)
    if not any(map(any, folders)):
        return None
    import importlib.metadata  # half as long as numpy takes, which others need not wait for

    try:
        files = importlib.metadata.distribution(PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name == DRIVER:
            path = Path(os.path.abspath(str(file.locate())))
            return path if path.is_file() else None
    return None


def system_drivers() -> list[Path]:
    """The .icd files that the loader reads: each names an installable client driver."""
    folder = Path(os.environ.get(NAMES[0]) or VENDORS)
    if folder.is_file():
        return [folder]
    return sorted(folder.glob("*.icd")) if folder.is_dir() else []


def named_drivers() -> list[str]:
    """The libraries that the environment names beside .icd files."""
    return [name for name in os.environ.get(NAMES[1], "").split(os.pathsep) if name]


def loader_knows(name: str) -> bool:
    """Whether the loader that this process has opened reads an environment variable; True where nobody can tell."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        files = {line.split()[-1] for line in lines if Path(LOADER).name in line}
        return not files or any(name.encode() in Path(file).read_bytes() for file in files)
    except OSError:
        return True


def library_of(file: Path) -> str:
    """The library that an .icd file names; any other file is the library itself."""
    return file.read_text(encoding="utf-8").strip() if file.suffix == ".icd" else str(file)


def is_there(file: Path) -> bool:
    """Whether the driver that an .icd file names opens: such files stay behind, or come with a container's image."""
    try:
        return opens(library_of(file))
    except (OSError, UnicodeDecodeError):
        return False


def opens(library: str) -> bool:
    """Whether the library is there; if so it stays open."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
