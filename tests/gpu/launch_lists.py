"""Lists of launches for kernels/launch_groups.cl, as csrc/ops/launch_graph_ops.cpp makes them, and the same launches
one by one.

What a kernel's arguments are, in order, and its number come from kernels/launch_table.clh and its parts, and what a
step's table is from kernels/launch_layout.clh: the host and the kernel read those, too.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import ptx
from toolchain import KERNELS

OWN_BITS = {"slot": 1 << 63, "header": 1 << 61}
COUNTER_INTS = 16
GROUP_LANES = 128


class Argument(NamedTuple):
    """Of a kernel: POINTER, SLOT, NUMBER or PLANNED, its type (of SLOT the role first; of PLANNED the header's int),
    its name."""

    kind: str
    type: str
    name: str


class Kernel(NamedTuple):
    number: int
    arguments: tuple[Argument, ...]


@cache
def kernels() -> dict[str, Kernel]:
    """All that launch_table.clh lists, by their names."""
    parts = ("launch_table", "launch_table_groups", "launch_table_matmul")
    text = "".join(re.sub(r"//.*", "", (KERNELS / f"{part}.clh").read_text()) for part in parts)
    for macro in re.finditer(r"#define (OF_ONE|OF_TWO)\(name\)((?:.*\\\n)*.*\n)", text):
        body = macro[2].replace("\\\n", "\n")
        text = re.sub(rf"^{macro[1]}\((\w+)\)$", lambda use, body=body: body.replace("(elementwise, name)",  # type: ignore[misc]
                      f"(elementwise, {use[1]})"), text, flags=re.M)  # fmt: skip
    text = re.sub(r"#define (OF_ONE|OF_TWO)\(name\)(?:.*\\\n)*.*\n", "", text)
    found: dict[str, Kernel] = {}
    for begin in re.finditer(r"^\s*(?:LAUNCH|COUNTED)\(\w+, (\w+)[^\n]*\n(.*?)^\s*END\(", text, re.M | re.S):
        given = re.findall(r"(POINTER|SLOT|NUMBER|PLANNED)\(((?:[^()]|\([^()]*\))*)\)", begin[2])
        arguments = []
        for kind, inside in given:
            first, name = inside.rsplit(", ", 1)
            arguments.append(Argument(kind, name, first) if kind == "PLANNED" else Argument(kind, first, name))
        found[begin[1]] = Kernel(len(found), tuple(arguments))
    return found


@cache
def layout(name: str) -> dict[str, int]:
    """The members of an enum of launch_layout.clh."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", (KERNELS / "launch_layout.clh").read_text(), re.S)
    assert body is not None
    members: dict[str, int] = {}
    for line in re.sub(r"//.*", "", body[1]).split(","):
        if line.strip():
            key, _, value = (part.strip() for part in line.partition("="))
            members[key] = int(value) if value else max(members.values(), default=-1) + 1
    return members


class Launch(NamedTuple):
    """A recorded launch: a kernel, its groups (of a kernel that is a function of one work-item: its work-items), its
    arguments by name, what is left out being 0. ``form``: which product it is. ``tiles``: whether axis 1 is multiplied
    by the number of tiles. An argument ``"table"`` is the step's table, ``"ints:N"`` int N behind its header, and
    ``"header:NAME"`` what the header's int of that name says lies there."""

    kernel: str
    size: tuple[int, int, int]
    given: dict[str, Any]
    form: int = 0
    tiles: bool = False


class Table(NamedTuple):
    """A step's table: headers (of one cache), and what they count, without the counters."""

    header: dict[str, int]
    ints: list[int]  # behind the header

    def numbers(self, launches: int) -> Any:
        """The whole table, with two counters for each launch."""
        counters = [0] * (2 * COUNTER_INTS * launches)
        begin = len(counters) + layout("LaunchLayout")["kHeaderInts"]
        header = [0] * layout("LaunchLayout")["kHeaderInts"]
        for name, value in self.header.items():
            header[layout("AttentionHeader")[name]] = value if name == "kTiles" else value + begin
        return np.array([*counters, *header, *self.ints], np.int32)

    def begin(self, launches: int) -> int:
        """Where ``ints`` begin in it."""
        return 2 * COUNTER_INTS * launches + layout("LaunchLayout")["kHeaderInts"]


def _bits(value: Any, type_: str) -> int:
    return int(np.array(value, np.float32).view(np.uint32)) if type_ == "float" else int(value) & ((1 << 64) - 1)


class List:
    """Launches, and the table of the step that they are of."""

    def __init__(self, launches: list[Launch], table: Table) -> None:
        self.launches, self.table = launches, table
        self.begin = table.begin(len(launches))
        self.header_at = 2 * COUNTER_INTS * len(launches)

    def _word(self, argument: Argument, value: Any) -> int:
        if not isinstance(value, str):
            return _bits(value, argument.type if argument.kind == "NUMBER" else "ulong")
        what, _, which = value.partition(":")
        if what == "header":
            return OWN_BITS["header"] | layout("AttentionHeader")[which]
        at = 0 if what == "table" else self.begin + int(which)
        return OWN_BITS["slot"] | (layout("LaunchSlots")["kSlotStep"] + at)

    def packed(self, most_words: int) -> Any:
        """The operations as the kernel reads them."""
        parts = []
        for launch in self.launches:
            kernel = kernels()[launch.kernel]
            axis, count_at = (1, layout("AttentionHeader")["kTiles"]) if launch.tiles else (-1, 0)
            head = [kernel.number, 0, *launch.size, axis, count_at, 0, launch.form, 0]
            words = [self._word(each, launch.given.get(each.name, 0)) for each in kernel.arguments]
            parts.append(np.array(head, np.int32).tobytes())
            parts.append(np.array(words + [0] * (most_words - len(words)), np.uint64).tobytes())
        return np.frombuffer(b"".join(parts), np.uint8)

    def run(self, program: ptx.Program, memory: ptx.GlobalMemory, groups: int, seed: int, slots: list[int],
            resident: int) -> ptx.Report:  # fmt: skip
        """As one launch of so many groups, ``resident`` at a time. ``slots``: logits, partial results, their stats."""
        table = memory.put(self.table.numbers(len(self.launches)))
        most_words = max(len(each.arguments) for each in kernels().values())
        given = [memory.put(self.packed(most_words)), len(self.launches), table, self.header_at, *slots]
        launch = ptx.Launch(program, (groups, 1, 1), (GROUP_LANES, 1, 1), given, seed)
        return launch.run(memory, resident=resident, turn=300)

    def run_apart(self, programs: list[tuple[ptx.Program, int]], memory: ptx.GlobalMemory) -> None:
        """Each by itself: of each launch its program and the lanes of a group."""
        numbers = self.table.numbers(len(self.launches))
        table, header = memory.put(numbers), numbers[self.header_at : self.begin]
        names = layout("AttentionHeader")

        def argument(of: Argument, value: Any) -> Any:
            if of.kind == "PLANNED":
                return header[names[of.type]]
            if not isinstance(value, str):
                return value
            what, _, which = value.partition(":")
            at = 0 if what == "table" else self.begin + int(which) if what == "ints" else int(header[names[which]])
            return table + 4 * at

        for launch, (program, lanes) in zip(self.launches, programs):
            all_ = [argument(each, launch.given.get(each.name, 0)) for each in kernels()[launch.kernel].arguments]
            x, y, z = launch.size
            groups = (x, y * (int(header[names["kTiles"]]) if launch.tiles else 1), z)
            given = _of_form(all_, program) if launch.kernel == "tensor_few" else all_
            ptx.Launch(program, groups, (lanes, 1, 1), given, 1).run(memory, resident=3)


def _of_form(given: list[Any], program: ptx.Program) -> list[Any]:
    """Of all arguments of tensor_few those that a form has: of a norm 4, of q, k and v 15."""
    missing = 33 - len(program.params)
    norm = given[14:18] if missing in (0, 15) else []
    return given[:14] + norm + (given[18:] if missing in (0, 4) else [])
