"""What the interpreter reports: errors in a kernel, and instructions that it has not learnt."""

from __future__ import annotations


class Finding(Exception):
    """A kernel did something that a device may punish. ``kind`` is one of KINDS; the text says which warp did what."""

    KINDS = ("race", "unwritten", "not landed", "divergence", "bounds", "alignment", "arithmetic", "endless")

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class UnknownInstruction(Exception):
    """The interpreter does not know an instruction, or one of its modifiers."""

    def __init__(self, instruction: str, why: str = "") -> None:
        super().__init__(
            f"[ptx] instruction: got {instruction!r}, allowed those of tests/gpu/ptx" + (why and f"; {why}")
        )
