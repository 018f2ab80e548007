"""Finds OpenCL where the system has no driver: the one for CPUs that ``pip install kvtrie[cpu]`` brings.

Its files lie in the environment's own folders, where no OpenCL loader looks. Called before the core is loaded.
Where the system has a driver, or the environment names one, nothing changes. The standard library alone is imported.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Optional

PACKAGE = "intel-opencl-rt"
DRIVER = "libintelocl.so"
LOADER = "libOpenCL.so.1"
BESIDE_LOADER = (
    "libintlc.so.5",
    "libimf.so",
    "libirng.so",
    "libsvml.so",
)  # what the packaged one needs and does not find
VENDORS = "/etc/OpenCL/vendors"
NAMES = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES")  # what the loaders of ocl-icd and of Khronos read, in this order


def prepare() -> None:
    """Makes the loader see the packaged driver, and opens the packaged loader where the system has none."""
    driver_wanted = not any(os.environ.get(name) for name in NAMES) and not system_drivers()
    loader_wanted = not opens(LOADER)
    driver = packaged_driver() if driver_wanted or loader_wanted else None
    if driver is None:
        return
    if driver_wanted:
        for name in NAMES:
            os.environ[name] = str(driver)
    if loader_wanted:
        for name in (*BESIDE_LOADER, LOADER):  # from now on they are found by their names
            opens(str(driver.with_name(name)))


def packaged_driver() -> Optional[Path]:
    """The file DRIVER of PACKAGE, if it is installed here."""
    import importlib.metadata  # tens of milliseconds, which a machine with a driver of its own need not spend

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


def opens(library: str) -> bool:
    """Whether the library is there; if so it stays open."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
