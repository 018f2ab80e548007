"""Groups, warps and their order: runs a program.

A warp goes on until it waits, ends, or has had its turn; then chance chooses among the warps of the resident groups
that can go on. bar.sync waits for all lanes of a group, which must come to the same one; bar.warp.sync for those of a
warp.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, NamedTuple, Optional

import numpy as np

from . import accesses, arithmetic, conversions, warp_wide
from .findings import Finding, UnknownInstruction
from .memory import GlobalMemory, Memory, SharedMemory, lane_stamps, stamp
from .operands import LANES, NUMPY, UNSIGNED, Mask, Step
from .source import Instruction, Program

Three = tuple[int, int, int]
_END = 1 << 30
_PLAIN, _BRANCH, _EXIT, _BARRIER, _WARP_BARRIER = range(5)
_MODULES: dict[str, Callable[[Program, Instruction], Step]] = {
    **dict.fromkeys(("mov", "cvt", "cvta"), conversions.decode),
    **dict.fromkeys(("ld", "st", "atom", "red", "cp"), accesses.decode),
    **dict.fromkeys(("shfl", "ldmatrix", "mma"), warp_wide.decode),
    **dict.fromkeys(("nop", "membar", "fence"), lambda program, instruction: lambda warp, mask: None),
}


class _Decoded(NamedTuple):
    kind: int
    step: Optional[Step]
    target: int
    guard: Optional[int]
    negated: bool


class Report(NamedTuple):
    """What a launch did: how often warps executed each instruction, and with ``counting`` what accesses cost."""

    seed: int
    instructions: dict[str, int]
    counts: dict[str, int]

    @property
    def total(self) -> int:
        """Warp instructions."""
        return sum(self.instructions.values())


def _decode(program: Program, instruction: Instruction) -> _Decoded:
    guard = None if instruction.guard is None else program.slot(instruction.guard)[0]
    head = instruction.words[0]
    step, target, kind = None, 0, _PLAIN
    if instruction.op in ("bra", "bra.uni"):
        kind, target = _BRANCH, program.labels[instruction.operands[0]]
    elif instruction.op in ("ret", "exit"):
        kind = _EXIT
    elif instruction.op == "bar.sync" and instruction.operands == ("0",):
        kind = _BARRIER
    elif instruction.op == "bar.warp.sync" and instruction.operands[0].lower() in ("0xffffffff", "-1"):
        kind = _WARP_BARRIER
    elif head == "bar":
        raise UnknownInstruction(str(instruction))
    else:
        step = _MODULES.get(head, arithmetic.decode)(program, instruction)
    return _Decoded(kind, step, target, guard, instruction.negated)


def _grain(program: Program, space: str) -> int:
    """The fewest bytes that an access to a memory has: a generic one may go to either."""
    sizes = [16]
    for words, operands in ((each.words, each.operands) for each in program.instructions):
        if words[:2] == ["cp", "async"] and len(operands) > 1:
            sizes.append(int(operands[2]))
        reaches = words[0] in ("ld", "st", "atom", "red") and not {"param", "local", "const"} & set(words)
        if reaches and (space in words or not {"shared", "global"} & set(words)):
            sizes.append(np.dtype(NUMPY[words[-1]]).itemsize)
    return min(sizes)


class Warp:
    """32 lanes. ``pc`` [32] is where each is, END where it has ended; ``waiting``: for the group's barrier."""

    def __init__(self, group: Group, index: int, lanes: int) -> None:
        self.group, self.index, self.launch = group, index, group.launch
        self.alive = np.arange(LANES) < lanes
        self.pc = np.where(self.alive, 0, _END)
        self.parked = np.zeros(LANES, bool)
        self.parked_warp = np.zeros(LANES, bool)
        self.barrier = -1
        self.waiting = False
        self.sync = 0
        self.copies: list[list[Any]] = [[]]  # of cp.async: groups in order, the last one still open
        self.registers = [np.full(LANES, -1).astype(storage) for storage in self.launch.storages]
        self.local = np.full((LANES, max(16, -(-self.launch.program.spaces["local"].size // 16) * 16)), 0xFF, np.uint8)
        self.special = self._special()
        self.restamp()

    def __str__(self) -> str:
        return f"warp {self.index} of group {self.group.place} ({self.launch.program.name}, seed {self.launch.seed})"

    def _special(self) -> dict[str, Any]:
        x, y, _ = self.launch.block
        item = 32 * self.index + np.arange(LANES)
        lanes = np.arange(LANES)
        values: dict[str, Any] = {"%laneid": lanes, "%warpid": np.full(LANES, self.index)}
        ids = (item % x, item // x % y, item // (x * y))
        for i, axis in enumerate("xyz"):
            values[f"%tid.{axis}"] = ids[i]
            values[f"%ntid.{axis}"] = np.full(LANES, self.launch.block[i])
            values[f"%ctaid.{axis}"] = np.full(LANES, self.group.place[i])
            values[f"%nctaid.{axis}"] = np.full(LANES, self.launch.grid[i])
        return values

    def restamp(self) -> None:
        """After a barrier: what is written from now on is of another epoch."""
        self.stamps, self.stamp_of_several = lane_stamps(self.group.stamp, self.sync, self.index)

    def together(self, instruction: Instruction, mask: Mask) -> None:
        """Raises a Finding unless all 32 lanes are here."""
        if mask is not None:
            raise Finding("divergence", f"{self}: {instruction} by {int(mask.sum())} of its 32 lanes")

    def turn(self, budget: int) -> int:
        """Goes on for about ``budget`` instructions, until it waits or ends; what is left of the budget."""
        while budget > 0 and not self.waiting:
            ready = self.alive & ~self.parked & ~self.parked_warp
            if not ready.any():
                self._all_parked()
                return budget
            at = int(self.pc[ready].min())
            lanes = ready & (self.pc == at)
            others = ready & ~lanes
            budget = self._straight(at, lanes, int(self.pc[others].min()) if others.any() else _END, budget)
        return budget

    def _all_parked(self) -> None:
        """No lane can go on: those at a barrier of the group wait, unless others of the warp wait for each other."""
        if self.parked.any() and self.parked_warp.any():
            raise Finding("divergence", f"{self}: some lanes are at bar.sync, others at bar.warp.sync")
        self.waiting = bool(self.parked.any())

    def _straight(self, at: int, lanes: Any, stop: int, budget: int) -> int:
        """Executes with these lanes from ``at`` on, until they part, wait, end or reach others at ``stop``."""
        code, counts, registers = self.launch.code, self.launch.executed, self.registers
        full: Mask = None if lanes.all() else lanes
        while budget > 0 and at < stop:
            each = code[at]
            budget -= 1
            counts[at] += 1
            mask = full
            if each.guard is not None:
                chosen = registers[each.guard]
                mask = lanes & (~chosen if each.negated else chosen)
                if each.kind == _PLAIN and not mask.any():
                    at += 1
                    continue
                mask = None if mask.all() else mask
            if each.kind == _PLAIN:
                each.step(self, mask)  # type: ignore[misc]
                at += 1
                continue
            taken = lanes if mask is None else mask
            if each.kind == _BRANCH and (taken == lanes).all():
                at = each.target
                if at > stop:
                    break
                continue
            if not taken.any():
                at += 1
                continue
            return self._part(each, at, lanes, taken, budget)
        self.pc[lanes] = at
        return budget

    def _part(self, each: _Decoded, at: int, lanes: Any, taken: Any, budget: int) -> int:
        """Lanes part, end or wait."""
        self.pc[lanes] = at + 1
        if each.kind == _BRANCH:
            self.pc[taken] = each.target
        elif each.kind == _EXIT:
            self.pc[taken] = _END
            self.alive = self.alive & ~taken
        elif each.kind == _BARRIER:
            if self.parked.any() and self.barrier != at:
                raise Finding("divergence", f"{self}: its lanes are at two different bar.sync")
            self.parked |= taken
            self.barrier = at
        else:
            self.parked_warp |= taken
            if (self.parked_warp == self.alive).all():
                self.parked_warp[:] = False
                self.sync += 1
                self.restamp()
        return budget

    def release(self) -> None:
        """The group's barrier is complete."""
        self.parked[:] = False
        self.waiting = False
        self.restamp()


class Group:
    """Warps that share local memory. ``epoch`` counts its barriers; ``learnt``: epochs of other groups, by number."""

    def __init__(self, launch: Launch, number: int, place: Three) -> None:
        self.launch, self.number, self.place = launch, number, place
        self.epoch = 0
        self.stamp = stamp(number, 0)
        self.copies = 0
        self.learnt: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        self.shared = SharedMemory(launch.shared_bytes, launch.shared_grain)
        items = int(np.prod(launch.block))
        self.warps = [Warp(self, i, min(LANES, items - LANES * i)) for i in range(-(-items // LANES))]

    def learn(self, epochs: dict[int, int]) -> None:
        """What an acquire has read: counts from the next barrier on, for all lanes."""
        for number, epoch in epochs.items():
            self._heard[number] = max(epoch, self._heard.get(number, -1))

    def release(self, address: int) -> None:
        """A release on a counter: whoever acquires it knows what came before this group's last barrier."""
        known = self.launch.released.setdefault(address, {})
        for number, epoch in {**self.learnt, self.number: self.epoch - 1}.items():
            known[number] = max(epoch, known.get(number, -1))

    def ready(self) -> list[Warp]:
        """Warps that can go on, once a barrier that all have reached is behind them."""
        going = [warp for warp in self.warps if warp.alive.any() and not warp.waiting]
        waiting = [warp for warp in self.warps if warp.waiting]
        if going or not waiting:
            return going
        if len(waiting) < len(self.warps) or any((warp.pc >= _END).any() for warp in waiting if self._whole(warp)):
            raise Finding("divergence", f"{waiting[0]}: at bar.sync, but other lanes of the group have ended")
        if len({warp.barrier for warp in waiting}) > 1:
            raise Finding("divergence", f"{waiting[0]}: warps of its group are at different bar.sync")
        self.epoch += 1
        self.stamp = stamp(self.number, self.epoch)
        self.learnt.update({number: max(epoch, self.learnt.get(number, -1)) for number, epoch in self._heard.items()})
        for warp in waiting:
            warp.release()
        return waiting

    def _whole(self, warp: Warp) -> bool:
        return int(np.prod(self.launch.block)) >= LANES * (warp.index + 1)


class Launch:
    """A program on a grid of ``grid`` groups of ``block`` work-items.

    ``arguments``: numbers and addresses of buffers in the kernel's order; for a pointer to local memory
    its offset. ``resident``: groups that run side by side. ``turn``: warp instructions until chance chooses
    again. ``limit``: instructions after which a kernel counts as endless. ``counting``: sectors and wavefronts, too.
    """

    def __init__(self, program: Program, grid: Three, block: Three, arguments: list[Any], seed: int = 0) -> None:
        if len(arguments) != len(program.params):
            raise ValueError(f"[ptx.Launch] arguments: got {len(arguments)}, allowed {len(program.params)}")
        self.program, self.grid, self.block, self.seed = program, grid, block, seed
        self.code = [_decode(program, each) for each in program.instructions]
        self.code.append(_Decoded(_EXIT, None, 0, None, False))
        self.storages = program.storages
        self.arguments = [_argument(kind, value) for (kind, _), value in zip(program.params, arguments)]
        self.shared_bytes, self.shared_grain = program.spaces["shared"].size, _grain(program, "shared")
        self.constants = Memory(len(program.const_bytes), 16, 0)
        self.constants.bytes[: len(program.const_bytes)] = np.frombuffer(bytes(program.const_bytes), np.uint8)
        self.random = np.random.default_rng(seed)
        self.executed = [0] * len(self.code)
        self.released: dict[int, dict[int, int]] = {}
        self.counting = False
        self._counts: Counter[str] = Counter()

    def count(self, what: str, by: int) -> None:
        """Adds to a count of the report."""
        self._counts[what] += by

    def run(
        self,
        memory: GlobalMemory,
        places: Optional[list[Three]] = None,
        resident: int = 1,
        turn: int = 5000,
        limit: int = 20_000_000,
        counting: bool = False,
    ) -> Report:
        """Runs all groups, or those at ``places``; raises a Finding. The memory keeps what was written."""
        self.counting = counting
        self.memory, self.known = memory.opened(_grain(self.program, "global"))
        x, y, z = self.grid
        todo = places if places is not None else [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]
        waiting = list(enumerate(todo))[::-1]
        groups: list[Group] = []
        with np.errstate(all="ignore"):
            while waiting or groups:
                while waiting and len(groups) < resident:
                    groups.append(Group(self, *waiting.pop()))
                limit -= self._go_on(groups, turn)
                groups = [group for group in groups if any(warp.alive.any() for warp in group.warps)]
                if limit <= 0:
                    raise Finding("endless", f"{self.program.name}: its groups wait for what does not come")
        memory.keep(self.memory)
        return Report(self.seed, self._instructions(), dict(self._counts))

    def _go_on(self, groups: list[Group], turn: int) -> int:
        ready = [warp for group in groups for warp in group.ready()]
        if not ready:
            raise Finding("divergence", f"{self.program.name}: no warp can go on")
        warp = ready[int(self.random.integers(len(ready)))]
        return turn - warp.turn(turn)

    def _instructions(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for instruction, count in zip(self.program.instructions, self.executed):
            if count:
                counts[instruction.op] += count
        return dict(counts)


def _argument(kind: str, value: Any) -> Any:
    """An argument in the type of its parameter: its bits, as every ld.param reads them."""
    dtype = np.dtype(NUMPY[kind])
    if dtype.kind == "f":
        return np.array(value, dtype).view(UNSIGNED[dtype.itemsize])[()]
    return np.array(int(value) & ((1 << 8 * dtype.itemsize) - 1), UNSIGNED[dtype.itemsize])[()]
