"""The parameters of synthetic traces, and one set of them for each kind (synthetic.py says what each kind is)."""

from __future__ import annotations

from dataclasses import dataclass

from .draws import Lengths

__all__ = ["KINDS", "Workload"]

# Measured on Mooncake's conversation trace.
_FIRST = Lengths(6909, 27367, 126195)
_OUTPUT = Lengths(350, 597, 4096)
# Chosen.
_GROWTH = Lengths(300, 1800, 30000)
_THINK = Lengths(15_000, 90_000, 1_800_000)
_PROMPT = Lengths(900, 2400, 8000)
_EXAMPLE = Lengths(600, 1200, 4000)
_DOCUMENT = Lengths(4000, 12000, 40000)


@dataclass(frozen=True)
class Workload:
    """The parameters of a synthetic trace. Times in ms, lengths in tokens, chances in permille."""

    kind: str = "sessions"  # for reports only
    seed: int = 0
    sessions: int = 200
    # When sessions come: Poisson with this mean gap, at multiples of `tick` (0: at any ms).
    gap: int = 2000
    tick: int = 0
    # Turns: another one follows with that chance, after a time to think.
    more: int = 500
    first: Lengths = _FIRST
    growth: Lengths = _GROWTH
    output: Lengths = _OUTPUT
    think: Lengths = _THINK
    # Shared parts: tenants are namespaces; each has system prompts and groups of examples, drawn by Zipf's law, and
    # documents, of which a session reads one with a chance.
    tenants: int = 2
    prompts: int = 8
    prompt: Lengths = _PROMPT
    examples: int = 0
    example: Lengths = _EXAMPLE
    documents: int = 100
    document: Lengths = _DOCUMENT
    read: int = 200
    # Going back: a turn begins at a token drawn from all of the answers and questions so far, or asks the last
    # question again; a prompt gets `samples` answers with a chance.
    edit: int = 100
    again: int = 50
    sampled: int = 0
    samples: int = 4
    # Agents: helpers branch off at the end of a turn, `width` of them at the same time, `depth` levels deep.
    agents: bool = False
    turns: int = 30
    burst: int = 0
    width: int = 4
    depth: int = 1
    # Noise: documents read once by a sweep that starts at the given part of all sessions; the time of day at that token
    # of each prompt; the context that a client cuts to, in front, once it is longer. 0: none.
    sweep: int = 0
    sweep_at: int = 500
    sweep_gap: int = 200
    clock_at: int = 0
    limit: int = 0

    def describe(self) -> str:
        """The kind and what differs from it, as a name for reports."""
        plain = KINDS.get(self.kind, Workload())
        shown = [f"seed={self.seed}"]
        for name, value in vars(self).items():
            if name != "seed" and value != getattr(plain, name):
                shown.append(f"{name}={value.describe() if isinstance(value, Lengths) else value}")
        return f"{self.kind}({', '.join(shown)})"


KINDS: dict[str, Workload] = {
    "sessions": Workload(),
    "agents": Workload(
        kind="agents",
        agents=True,
        sessions=75,
        tenants=1,
        prompts=1,
        prompt=Lengths(20_000, 20_000, 20_000),
        first=Lengths(10_000, 10_000, 10_000),
        growth=Lengths(2048, 2048, 2048),
        output=Lengths(900, 900, 900),
        think=Lengths(2000, 8000, 60_000),
        documents=0,
        read=0,
        edit=0,
        again=0,
        burst=100,
    ),
    "scan": Workload(kind="scan", sweep=400),
    "hostile": Workload(kind="hostile", clock_at=32, limit=16_384),
}
