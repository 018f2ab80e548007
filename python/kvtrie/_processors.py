"""How many processors this process may use: those it is bound to, and no more than its control groups grant.

A container with ``--cpus 2`` on a machine of 64 sees all 64. Threads for all of them would take turns at the time of
two, and each step would wait for whoever has been stopped. So drivers and tokenizers, which count for themselves, are
told, unless the environment tells them already. The standard library alone is imported.

Sources: the kernel's Documentation/admin-guide/cgroup-v2.rst (``cpu.max``) and scheduler/sched-bwc.rst
(``cpu.cfs_quota_us``). A quota is microseconds of processor time in each period; a group has no more than those above.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Optional

# Of pocl before and since version 4, of Intel's driver, and of the tokenizers library.
VARIABLES = (("POCL_MAX_PTHREAD_COUNT", "POCL_CPU_MAX_CU_COUNT"), ("DPCPP_CPU_NUM_CUS",), ("RAYON_NUM_THREADS",))
_ROOT = Path("/")


class Granted(NamedTuple):
    """``quota``: processors' worth of time, None where there is no limit; ``bound``: those it may run on."""

    quota: Optional[float]
    bound: int

    @property
    def threads(self) -> int:
        """Threads that compute; the last one may have to wait."""
        return self.bound if self.quota is None else max(1, min(self.bound, math.ceil(self.quota)))


def granted(root: Path = _ROOT) -> Granted:
    """As it is now. ``root``: where /proc and /sys lie."""
    return Granted(quota(root), len(os.sched_getaffinity(0)))


def prepare() -> None:
    """Tells those that count for themselves; nothing where all processors may be used."""
    count = granted().threads
    if count < (os.cpu_count() or 1):
        os.environ.update(told(count, os.environ))


def told(count: int, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that say so to those whom the environment says nothing."""
    asked = [names for names in VARIABLES if not any(environment.get(name) for name in names)]
    return {name: str(count) for names in asked for name in names}


def quota(root: Path = _ROOT) -> Optional[float]:
    """The least that any group of this process grants; None where none limits it, or nobody can tell."""
    try:
        limits = [limit for group, version in _groups(root) if (limit := _limit(group, version)) is not None]
    except (OSError, ValueError, IndexError, ArithmeticError):
        return None
    return min(limits, default=None)


def _groups(root: Path) -> Iterator[tuple[Path, int]]:
    """The folder of each group that may limit the process, from its own up, and the version of its files."""
    own = {}
    for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers or "cpu" in controllers.split(","):
            own[1 if controllers else 2] = path
    for version, top, place in _mounts(root):
        if version not in own:
            continue
        path = own[version]
        below = os.path.relpath(path, top) if path == top or path.startswith(top.rstrip("/") + "/") else "."
        folder = place / below
        while True:
            yield folder, version
            if folder == place or place not in folder.parents:
                break
            folder = folder.parent


def _mounts(root: Path) -> Iterator[tuple[int, str, Path]]:
    """Version, the group that is mounted, and where."""
    for line in (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        before, _, behind = line.partition(" - ")
        kind, _, options = behind.split(" ", 2)
        top, place = before.split(" ")[3:5]
        if kind == "cgroup2":
            yield 2, top, root / place.lstrip("/")
        elif kind == "cgroup" and "cpu" in options.split(","):
            yield 1, top, root / place.lstrip("/")


def _limit(group: Path, version: int) -> Optional[float]:
    """Of one group."""
    try:
        if version == 2:
            given, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        else:
            given, period = (
                (group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8").strip() for name in ("quota", "period")
            )
    except OSError:
        return None  # the root group has none
    return None if given in ("max", "-1") else int(given) / int(period)
