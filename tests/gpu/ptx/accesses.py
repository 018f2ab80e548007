"""ld, st, atom, red and cp.async: how lanes reach the memories.

Lanes of one instruction are served together. Generic addresses belong to a lane's own memory, to shared or to constant
memory where they lie in its window, and to global memory elsewhere; all lanes of one instruction have to agree.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Callable, Optional

import numpy as np

from .counts import sectors, wavefronts
from .findings import Finding, UnknownInstruction
from .memory import check_alignment
from .operands import LANES, NUMPY, WINDOWS, Mask, Step, Values, address, inner, reader, size_of, writer
from .source import Instruction, Program

if TYPE_CHECKING:
    from .machine import Warp

_SPACES = ("global", "shared", "local", "const", "param")
_IGNORED = {"nc", "relaxed", "acquire", "release", "gpu", "weak", "volatile", "L2::128B"}


def _lanes(mask: Mask) -> Any:
    return np.arange(LANES) if mask is None else np.nonzero(mask)[0]


def _space(warp: Warp, addresses: Any, given: Optional[str]) -> tuple[str, Any]:
    """The space of an access, and addresses inside of it."""
    if given is not None:
        return given, addresses
    for space, begin in WINDOWS.items():
        if begin <= addresses[0] < begin << 1:
            if not ((begin <= addresses) & (addresses < begin << 1)).all():
                raise Finding("bounds", f"generic: {warp} reaches several memories at once")
            return space, addresses - begin
    return "global", addresses


class _Vector:
    """The registers of a ld or st, and where they lie: ``count`` numbers of ``size`` bytes from an address on."""

    def __init__(self, program: Program, instruction: Instruction, place: str) -> None:
        words = instruction.words
        self.kind = words[-1]
        if self.kind not in NUMPY or self.kind == "pred":
            raise UnknownInstruction(str(instruction))
        self.dtype, self.size = NUMPY[self.kind], size_of(self.kind)
        self.count = next((int(word[1:]) for word in words if re.fullmatch(r"v[24]", word)), 1)
        self.addresses, variable = address(program, place)
        self.space = next((word for word in words[1:-1] if word in _SPACES), variable)
        unknown = set(words[1:-1]) - _IGNORED - set(_SPACES) - {"v2", "v4"}
        if unknown:
            raise UnknownInstruction(str(instruction), f"modifiers {sorted(unknown)}")

    @property
    def bytes(self) -> int:
        return self.size * self.count


def check_global(warp: Warp, addresses: Any, count: int) -> None:
    """Global addresses have to lie in one buffer and be aligned."""
    check_alignment("global", warp, addresses, count)
    known = warp.launch.known
    if addresses.min() < 0 or addresses.max() + count > len(known):
        raise Finding("bounds", f"global: {warp} at {addresses.min()} to {addresses.max()}, outside of all buffers")
    inside = known[addresses] & known[addresses + count - 1]
    if not inside.all():
        raise Finding(
            "bounds", f"global: {warp} at {int(addresses[~inside][0])}, {count} bytes, outside of all buffers"
        )


def _reach(warp: Warp, vector: _Vector, mask: Mask, write: bool) -> tuple[Any, Any, Any]:
    """Checks and counts an access: the memory as numbers, the first index of each lane, the lanes."""
    lanes = _lanes(mask)
    space, at = _space(warp, vector.addresses(warp)[lanes], vector.space)
    if space == "local":
        return _reach_local(warp, vector, at, lanes)
    if space == "const":
        table = warp.launch.constants.as_numbers(vector.dtype)
        check_alignment("const", warp, at, vector.bytes)
        if write or at.min() < 0 or at.max() + vector.bytes > warp.launch.constants.bytes.size:
            raise Finding("bounds", f"const: {warp} at {at.max()}")
        return table, at // vector.size, lanes
    if space == "shared":
        memory = warp.group.shared
        memory.check(warp.group, warp, at, vector.bytes, lanes, write)
        if warp.launch.counting:
            warp.launch.count("shared requests", 1)
            warp.launch.count("shared wavefronts", wavefronts(at, vector.bytes))
    else:
        memory = warp.launch.memory
        check_global(warp, at, vector.bytes)
        memory.owners.touch(warp, memory.grains(at, vector.bytes), lanes, write, "global")
        if warp.launch.counting:
            verb = "stored" if write else "loaded"
            warp.launch.count(f"requests {verb}", 1)
            warp.launch.count(f"sectors {verb}", sectors(at, vector.bytes))
    return memory.as_numbers(vector.dtype), at // vector.size, lanes


def _reach_local(warp: Warp, vector: _Vector, at: Any, lanes: Any) -> tuple[Any, Any, Any]:
    size = warp.local.shape[1]
    check_alignment("local", warp, at, vector.bytes)
    if at.min() < 0 or at.max() + vector.bytes > size:
        raise Finding("bounds", f"local: {warp} at {at.max()}, allowed 0 to {size}")
    return warp.local.reshape(-1).view(vector.dtype), (lanes * size + at) // vector.size, lanes


def _load_parameter(program: Program, instruction: Instruction) -> Step:
    kind = instruction.words[-1]
    found = re.fullmatch(r"\[\s*([\w$]+)\s*\]", instruction.operands[1])
    names = [name for _, name in program.params]
    if found is None or found[1] not in names or len(instruction.words) != 3:
        raise UnknownInstruction(str(instruction))
    index, write, dtype = names.index(found[1]), writer(program, instruction.operands[0], kind), NUMPY[kind]
    return lambda warp, mask: write(warp, mask, np.full(LANES, warp.launch.arguments[index]).view(dtype))


def _load(program: Program, instruction: Instruction) -> Step:
    if "param" in instruction.words:
        return _load_parameter(program, instruction)
    vector = _Vector(program, instruction, instruction.operands[1])
    writes = [writer(program, name, vector.kind) for name in inner(instruction.operands[0])]
    acquires = "acquire" in instruction.words

    def step(warp: Warp, mask: Mask) -> None:
        if acquires:
            return _load_acquired(warp, vector, mask, writes[0])
        numbers, first, lanes = _reach(warp, vector, mask, False)
        for i, write in enumerate(writes):
            out = np.zeros(LANES, vector.dtype)
            out[lanes] = numbers[first + i]
            write(warp, mask, out)

    return step


def _load_acquired(warp: Warp, vector: _Vector, mask: Mask, write: Callable[..., None]) -> None:
    """A counter: not a race, and what its releases wrote is known from the next barrier on."""
    lanes = _lanes(mask)
    at = vector.addresses(warp)[lanes]
    check_global(warp, at, vector.bytes)
    out = np.zeros(LANES, vector.dtype)
    out[lanes] = warp.launch.memory.as_numbers(vector.dtype)[at // vector.size]
    for each in np.unique(at):
        warp.group.learn(warp.launch.released.get(int(each), {}))
    write(warp, mask, out)


def _store(program: Program, instruction: Instruction) -> Step:
    vector = _Vector(program, instruction, instruction.operands[0])
    reads = [reader(program, name, vector.kind) for name in inner(instruction.operands[1])]

    def step(warp: Warp, mask: Mask) -> None:
        numbers, first, lanes = _reach(warp, vector, mask, True)
        for i, read in enumerate(reads):
            numbers[first + i] = read(warp)[lanes]

    return step


_ATOMIC: dict[str, Callable[[Values, Values], Values]] = {
    "add": lambda old, x: old + x,
    "max": max,
    "min": min,
    "and": lambda old, x: old & x,
    "or": lambda old, x: old | x,
    "exch": lambda old, x: x,
}


def _atomic(program: Program, instruction: Instruction) -> Step:
    """atom and red on global memory: lane after lane, in random order. A release publishes what the group did, an
    acquire learns what others had published there; ``acq_rel`` is both."""
    words = instruction.words
    returns = words[0] == "atom"
    kind, name = words[-1], words[-2]
    modifiers = set(words[1:-2]) - {"relaxed", "acquire", "release", "acq_rel", "gpu"}
    acquires, releases = ({each, "acq_rel"} & set(words) for each in ("acquire", "release"))
    if name not in (*_ATOMIC, "cas") or modifiers != {"global"} or kind not in NUMPY:
        raise UnknownInstruction(str(instruction))
    place, *values = instruction.operands[1 if returns else 0 :]
    addresses, _ = address(program, place)
    reads = [reader(program, value, kind) for value in values]
    write = writer(program, instruction.operands[0], kind) if returns else None
    dtype, size = NUMPY[kind], size_of(kind)

    def change(old: Values, given: list[Values]) -> Values:
        if name == "cas":
            return given[1] if old == given[0] else old
        return _ATOMIC[name](old, given[0])

    def step(warp: Warp, mask: Mask) -> None:
        at, given = addresses(warp), [read(warp) for read in reads]
        lanes = _lanes(mask)
        check_global(warp, at[lanes], size)
        numbers, old = warp.launch.memory.as_numbers(dtype), np.zeros(LANES, dtype)
        for lane in warp.launch.random.permutation(lanes):
            index = at[lane] // size
            old[lane] = numbers[index]
            numbers[index] = change(numbers[index], [value[lane] for value in given])
            if acquires:
                warp.group.learn(warp.launch.released.get(int(at[lane]), {}))
            if releases:
                warp.group.release(int(at[lane]))
        if write is not None:
            write(warp, mask, old)

    return step


def _copy(program: Program, instruction: Instruction) -> Step:
    """cp.async of 16 bytes, or by ``ca`` of 4 or 8, too: read now, written when a wait_group lets it land. Of fewer
    source bytes the rest is 0."""
    through = re.fullmatch(r"cp\.async\.(cg|ca)\.shared\.global(\.L2::128B)?", instruction.op)
    if through is None or instruction.operands[2] not in (("16",) if through[1] == "cg" else ("4", "8", "16")):
        raise UnknownInstruction(str(instruction))
    whole = int(instruction.operands[2])
    to, source = (address(program, text)[0] for text in instruction.operands[:2])
    size = reader(program, instruction.operands[3], "u32") if len(instruction.operands) > 3 else None

    def step(warp: Warp, mask: Mask) -> None:
        lanes = _lanes(mask)
        target, origin = to(warp)[lanes], source(warp)[lanes]
        count = np.full(len(lanes), whole) if size is None else size(warp)[lanes].astype(np.int64)
        data, read = np.zeros((len(lanes), whole), np.uint8), count > 0
        check_alignment("cp.async", warp, target, whole)
        if read.any():
            check_alignment("cp.async", warp, origin[read], whole)
            _check_copied(warp, origin[read], count[read], lanes[read], whole)
            data[read] = warp.launch.memory.bytes[origin[read][:, None] + np.arange(whole)]
            data[np.arange(whole) >= count[:, None]] = 0
        warp.group.shared.check(warp.group, warp, target, whole, lanes, True)
        warp.group.shared.landing[warp.group.shared.grains(target, whole)] += 1
        warp.group.copies += 1
        warp.copies[-1].append((target, data, lanes))
        if warp.launch.counting:
            warp.launch.count("sectors loaded", sectors(origin[read], whole))
            warp.launch.count("wavefronts of copies", wavefronts(target, whole))

    return step


def _check_copied(warp: Warp, origin: Any, count: Any, lanes: Any, whole: int) -> None:
    known = warp.launch.known
    if (
        origin.min() < 0
        or origin.max() + whole > len(known)
        or not known[origin + count - 1].all()
        or not known[origin].all()
    ):
        raise Finding("bounds", f"cp.async: {warp} reads from {origin.min()} to {origin.max()}, outside of all buffers")
    memory = warp.launch.memory
    memory.owners.touch(warp, memory.grains(origin, whole), lanes, False, "global")


def _copy_groups(program: Program, instruction: Instruction) -> Step:
    """commit_group and wait_group: all but the last N committed groups land."""
    if instruction.op == "cp.async.commit_group":
        return lambda warp, mask: warp.together(instruction, mask) or warp.copies.append([])
    keep = int(instruction.operands[0])

    def wait(warp: Warp, mask: Mask) -> None:
        warp.together(instruction, mask)
        committed, warp.copies = warp.copies[:-1], warp.copies[-1:]
        landing, stay = committed[: len(committed) - keep], committed[max(0, len(committed) - keep) :]
        warp.copies = stay + warp.copies
        for copies in landing:
            for target, data, lanes in copies:
                _land(warp, target, data, lanes)

    return wait


def _land(warp: Warp, target: Any, data: Any, lanes: Any) -> None:
    shared = warp.group.shared
    whole = data.shape[1]
    grains = shared.grains(target, whole)
    shared.landing[grains] -= 1
    warp.group.copies -= 1
    shared.bytes[target[:, None] + np.arange(whole)] = data
    shared.owners.touch(warp, grains, lanes, True, "shared")


def decode(program: Program, instruction: Instruction) -> Step:
    """The step of an instruction that reaches memory lane by lane."""
    head = instruction.words[0]
    if head == "cp":
        groups = instruction.op in ("cp.async.commit_group", "cp.async.wait_group")
        return (_copy_groups if groups else _copy)(program, instruction)
    return {"ld": _load, "st": _store, "atom": _atomic, "red": _atomic}[head](program, instruction)
