"""PTX text as a program: the declarations and instructions of one kernel.

    .entry NAME(params) { .reg ...; .shared ...; .local ...;  $label:  @%p1 op.mod.type  d, a, b; ... }

Registers are numbered by first use and kept as unsigned numbers of their width (predicates as bool). Offsets of shared,
local and constant variables are in bytes, from 0 in each space. Functions must have been inlined by the compiler.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

import numpy as np

from .findings import UnknownInstruction

_STORAGE = {"8": np.uint8, "16": np.uint16, "32": np.uint32, "64": np.uint64}
_VARIABLE = re.compile(
    r"\.(shared|local|const|global)\s+\.align\s+(\d+)\s+\.[busf](\d+)\s+([\w$]+)(?:\[(\d+)\])?(?:\s*=\s*\{([^}]*)\})?\s*;"
)
_ENTRY = r"\.entry\s+{}\s*\(([^)]*)\)[^{{]*\{{"


class Instruction(NamedTuple):
    """``op`` split at its dots; operands as text; lanes whose ``guard`` is false (true where ``negated``) skip it."""

    op: str
    operands: tuple[str, ...]
    guard: Optional[str]
    negated: bool

    @property
    def words(self) -> list[str]:
        """``op`` at its dots, but for the ``::`` inside of a word."""
        return self.op.split(".")

    def __str__(self) -> str:
        guard = f"@{'!' * self.negated}{self.guard} " if self.guard else ""
        return f"{guard}{self.op} {', '.join(self.operands)}"


def entries(text: str) -> list[str]:
    """The names of a text's kernels."""
    return re.findall(r"\.entry\s+([\w$]+)", text)


def split_operands(text: str) -> tuple[str, ...]:
    """Operands at the commas that are in no braces or brackets."""
    return tuple(part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip())


@dataclass
class Space:
    """Variables of one memory space: where each begins, and how many bytes there are."""

    places: dict[str, int] = field(default_factory=dict)
    size: int = 0

    def add(self, name: str, align: int, size: int) -> None:
        self.places[name] = -(-self.size // align) * align
        self.size = self.places[name] + size


class Program:
    """The kernel ``name`` of a PTX text; see the module. ``params``: (type, name) in order."""

    def __init__(self, text: str, name: str) -> None:
        text = re.sub(r"//[^\n]*", "", text)
        found = re.search(_ENTRY.format(re.escape(name)), text)
        if found is None:
            raise KeyError(f"[ptx] kernel: got {name}, allowed {', '.join(entries(text)) or 'none'}")
        self.name = name
        self.params = re.findall(r"\.param\s+\.(\w+)[^,]*?([\w$]+)\s*(?:,|$)", found[1].strip())
        self.spaces = {"shared": Space(), "local": Space(), "const": Space()}
        self.const_bytes = bytearray()
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self._prefixes: dict[str, type] = {}
        self._registers: dict[str, int] = {}
        self.storages: list[type] = []
        outside = text[: text.find(".entry")]
        for variable in _VARIABLE.finditer(outside):
            self._declare(variable)
        self._read(_VARIABLE.sub(self._declare, _body(text, found.end())))

    def _declare(self, found: re.Match[str]) -> str:
        space, align, bits, name, count, values = found.groups()
        key = (
            "const" if space == "global" else space
        )  # a table that the compiler keeps in global memory is constant, too
        self.spaces[key].add(name, int(align), int(count or 1) * int(bits) // 8)
        if key == "const":
            self.const_bytes.extend(bytes(self.spaces[key].size - len(self.const_bytes)))
            data = bytes(int(value) for value in (values or "").split(",") if value.strip())
            at = self.spaces[key].places[name]
            self.const_bytes[at : at + len(data)] = data
        return ""

    def _read(self, body: str) -> None:
        for piece in body.split(";"):
            text = self._after_labels(piece.strip())
            if text.startswith(".reg"):
                self._declare_registers(text)
            elif text and not text.startswith("."):
                self.instructions.append(_instruction(text))

    def _after_labels(self, text: str) -> str:
        """Notes the labels and drops the braces of scopes that a statement begins with."""
        while True:
            label = re.match(r"([$\w]+):\s*", text)
            if label:
                self.labels[label[1]] = len(self.instructions)
                text = text[label.end() :]
            elif text[:1] in ("{", "}"):
                text = text[1:].strip()
            else:
                return text

    def _declare_registers(self, text: str) -> None:
        found = re.match(r"\.reg\s+\.(\w+)\s+(.*)", text, re.S)
        assert found is not None
        digits = re.search(r"\d+", found[1])
        storage = np.bool_ if found[1] == "pred" else _STORAGE[digits[0] if digits else ""]
        for name in found[2].split(","):
            self._prefixes[re.sub(r"<\d+>", "", name).strip()] = storage

    def slot(self, register: str) -> tuple[int, type]:
        """The number of a register, and the type that it is kept as."""
        if register not in self._registers:
            storage = self._prefixes.get(register) or self._prefixes.get(re.sub(r"\d+$", "", register))
            if storage is None:
                raise UnknownInstruction(register, "no such register is declared")
            self._registers[register] = len(self.storages)
            self.storages.append(storage)
        return self._registers[register], self.storages[self._registers[register]]

    def place(self, name: str) -> Optional[tuple[str, int]]:
        """The space and offset of a variable; None: there is none."""
        for key, space in self.spaces.items():
            if name in space.places:
                return key, space.places[name]
        return None

    def barriers(self) -> list[int]:
        """The indices of the instructions that wait for a group or a warp."""
        return [
            i for i, each in enumerate(self.instructions) if each.op.startswith(("bar.sync", "barrier", "bar.warp"))
        ]

    def without(self, index: int) -> Program:
        """This program with one instruction that does nothing instead: what a test must notice."""
        other = object.__new__(Program)
        other.__dict__.update(self.__dict__)
        other.instructions = list(self.instructions)
        other.instructions[index] = Instruction("nop", (), None, False)
        return other


def _body(text: str, begin: int) -> str:
    depth = 1
    for brace in re.compile("[{}]").finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[begin : brace.start()]
    raise ValueError(f"[ptx] body: got no end of what begins at {begin}, allowed a closing brace")


def _instruction(text: str) -> Instruction:
    guard = re.match(r"@(!?)(%?\w+)\s+", text)
    op, *rest = (text[guard.end() :] if guard else text).split(None, 1)
    operands = split_operands(rest[0]) if rest else ()
    return Instruction(op, operands, guard[2] if guard else None, bool(guard and guard[1]))
