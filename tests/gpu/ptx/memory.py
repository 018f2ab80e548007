"""The memories of a launch, and who touched them last.

    GlobalMemory   one address space of buffers with gaps between them; an access outside of all buffers is a finding
    SharedMemory   of one group; begins unwritten (and as NaN in every type)
    Owners         the last write and the last reads of each grain of a memory, for races

Addresses and sizes are bytes. A grain is the smallest number of bytes that a kernel's accesses to that memory have:
since accesses are aligned, bytes of one grain are always touched together.

A write and another access to the same bytes race unless something orders them: the same lane does both; both lanes are
of one warp, with a bar.warp.sync between them; both are of one group, with a bar.sync between them; or the other group
learnt of it (an acquire that read what a release had written). Reads by several groups are not told apart: a write
after them is a race unless the group has learnt something since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .findings import Finding

if TYPE_CHECKING:
    from .machine import Group, Warp

# A stamp is (group, epoch, sync, who): the barriers of the group and of the warp until then; who is a lane of the
# group, or a warp of which several lanes read, or the mark of several warps.
_WHO, _SYNC, _EPOCH = 11, 17, 17
_WARPS, _SEVERAL_WARPS = 1024, 2047
_MANY_GROUPS = (1 << 18) - 1
_WHO_MASK, _SYNC_MASK, _EPOCH_MASK = (1 << _WHO) - 1, (1 << _SYNC) - 1, (1 << _EPOCH) - 1
_EPOCH_AT = _WHO + _SYNC
_GROUP_AT = _EPOCH_AT + _EPOCH
NEVER = -1


class Owners:
    """Stamps of ``grains`` grains; see the module."""

    def __init__(self, grains: int) -> None:
        self.writes = np.full(grains, NEVER, np.int64)
        self.reads = np.full(grains, NEVER, np.int64)

    def touch(self, warp: Warp, grains: Any, lanes: Any, write: bool, space: str) -> None:
        """Notes an access of ``lanes`` [n] to ``grains`` [n, m] and raises a Finding if it races."""
        group = warp.group
        stamps = warp.stamps[lanes][:, None] + np.zeros_like(grains)
        self._check(warp, self.writes[grains], stamps, space, "write", write)
        if write:
            self._check(warp, self.reads[grains], stamps, space, "read", write)
            self.writes[grains] = stamps
            if (self.writes[grains] != stamps).any():
                raise Finding("race", f"{space}: two lanes of {warp} write the same bytes at once")
            return
        before = self.reads[grains]
        self.reads[grains] = stamps
        mixed = self.reads[grains] != stamps
        if mixed.any():
            stamps = np.where(mixed, warp.stamp_of_several, stamps)
            self.reads[grains] = stamps
        if (before >= group.stamp).any() or (space == "global" and (before >= 0).any()):
            self.reads[grains] = _joined(before, self.reads[grains])

    def _check(self, warp: Warp, last: Any, stamps: Any, space: str, what: str, write: bool) -> None:
        group = warp.group
        if space != "global" and not (last >= group.stamp).any():
            return
        now = last >> _EPOCH_AT == group.stamp >> _EPOCH_AT
        who = last & _WHO_MASK
        of_warp = np.where(who < _WARPS, who >> 5, who - _WARPS) == warp.index
        ordered = (
            (last == stamps) | (of_warp & ((last ^ stamps) >> _WHO & _SYNC_MASK != 0)) | (who == stamps & _WHO_MASK)
        )
        if (now & ~ordered).any():
            act = "writes" if write else "reads"
            raise Finding("race", f"{space}: {warp} {act} after a {what} of another lane, with no barrier between them")
        if space == "global":
            self._check_groups(warp, last, what, write)

    def _check_groups(self, warp: Warp, last: Any, what: str, write: bool) -> None:
        groups = last >> _GROUP_AT
        others = (last >= 0) & (groups != warp.group.number)
        if not others.any():
            return
        for number in np.unique(groups[others]):
            epochs = last[others & (groups == number)] >> _EPOCH_AT & _EPOCH_MASK
            learnt = warp.group.learnt
            if not (learnt if number == _MANY_GROUPS else epochs.max() <= learnt.get(int(number), -1)):
                act = "writes" if write else "reads"
                raise Finding("race", f"global: {warp} {act} after a {what} of another group, which nothing orders")


def _joined(before: Any, now: Any) -> Any:
    """The stamp of reads ``before`` together with those of ``now``."""
    of_epoch = before >> _EPOCH_AT == now >> _EPOCH_AT
    who, other = before & _WHO_MASK, now & _WHO_MASK
    warp, other_warp = (np.where(each < _WARPS, each >> 5, each - _WARPS) for each in (who, other))
    several = np.where(warp == other_warp, _WARPS + warp, _SEVERAL_WARPS)
    joined = np.where(who == other, now, (now & ~_WHO_MASK) | np.where(who == _SEVERAL_WARPS, who, several))
    other_group = (before >= 0) & (before >> _GROUP_AT != now >> _GROUP_AT)
    many = (_MANY_GROUPS << _GROUP_AT) | _SEVERAL_WARPS
    return np.where(of_epoch, joined, np.where(other_group, many, now))


def stamp(group: int, epoch: int) -> int:
    """What the stamps of a group's epoch begin with."""
    return group << _GROUP_AT | (epoch & _EPOCH_MASK) << _EPOCH_AT


def lane_stamps(group_stamp: int, sync: int, warp: int) -> tuple[Any, int]:
    """The stamps of a warp's lanes [32], and the one of several of them."""
    base = group_stamp | (sync & _SYNC_MASK) << _WHO
    return base + 32 * warp + np.arange(32, dtype=np.int64), base | (_WARPS + warp)


class Memory:
    """Bytes, their owners, and views of them as numbers. ``size`` is rounded up to 16."""

    def __init__(self, size: int, grain: int, filler: int) -> None:
        self.bytes = np.full(max(16, -(-size // 16) * 16), filler, np.uint8)
        self.grain = grain
        self.owners = Owners(len(self.bytes) // grain)
        self._views: dict[type, Any] = {}

    def as_numbers(self, dtype: type) -> Any:
        """All bytes as numbers of a type, for reads and writes."""
        if dtype not in self._views:
            self._views[dtype] = self.bytes.view(dtype)
        return self._views[dtype]

    def grains(self, addresses: Any, count: int) -> Any:
        """The grains [n, m] of ``count`` bytes at each of ``addresses`` [n]."""
        first = addresses // self.grain
        return first[:, None] + np.arange(max(1, count // self.grain))


class GlobalMemory:
    """Buffers of one launch after the other: ``put`` gives an address, ``get`` reads what lies there."""

    GAP = 256

    def __init__(self) -> None:
        self._buffers: list[tuple[int, Any]] = []
        self._top = 4096

    def put(self, array: Any) -> int:
        """Copies an array into a buffer of its own; its address, a multiple of 256."""
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        at = self._top
        self._buffers.append((at, data.copy()))
        self._top = -(-(at + data.size + self.GAP) // self.GAP) * self.GAP
        return at

    def get(self, at: int, shape: tuple[int, ...], dtype: Any) -> Any:
        """A copy of the numbers that begin a buffer."""
        data = next(data for begin, data in self._buffers if begin == at)
        count = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return data[:count].view(dtype).reshape(shape).copy()

    def opened(self, grain: int) -> tuple[Memory, Any]:
        """The bytes of all buffers, and which of them belong to one [bytes]."""
        memory = Memory(self._top, grain, 0xFB)
        known = np.zeros(len(memory.bytes), bool)
        for at, data in self._buffers:
            memory.bytes[at : at + data.size] = data
            known[at : at + data.size] = True
        return memory, known

    def keep(self, memory: Memory) -> None:
        """Takes over what a launch has written."""
        for at, data in self._buffers:
            data[:] = memory.bytes[at : at + data.size]


class SharedMemory(Memory):
    """Local memory of a group. ``landing`` counts the copies of cp.async on their way to each grain."""

    def __init__(self, size: int, grain: int) -> None:
        super().__init__(size, grain, 0xFF)
        self.landing = np.zeros(len(self.bytes) // grain, np.int16)
        self.size = size

    def check(self, group: Group, warp: Warp, addresses: Any, count: int, lanes: Any, write: bool) -> None:
        """Bounds, copies that have not landed, races, and reads of what nobody wrote."""
        check_alignment("shared", warp, addresses, min(count, 16))
        if addresses.min() < 0 or addresses.max() + count > self.size:
            raise Finding(
                "bounds", f"shared: {warp} at {addresses.max()} to {count} bytes on, allowed 0 to {self.size}"
            )
        grains = self.grains(addresses, count)
        if group.copies and self.landing[grains].any():
            raise Finding("not landed", f"shared: {warp} touches what cp.async has not brought")
        if not write and (self.owners.writes[grains] == NEVER).any():
            raise Finding("unwritten", f"shared: {warp} reads what nobody wrote")
        self.owners.touch(warp, grains, lanes, write, "shared")


def check_alignment(space: str, warp: Warp, addresses: Any, count: int) -> None:
    """Addresses have to be multiples of the bytes of an access."""
    if (addresses % count).any():
        wrong = int(addresses[addresses % count != 0][0])
        raise Finding("alignment", f"{space}: {warp} at {wrong}, allowed multiples of {count}")
