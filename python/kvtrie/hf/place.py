"""Where a session of transformers stands, as one value: a call builds the next one, and one assignment makes it hold.

An exception may come between any two statements: KeyboardInterrupt, no memory, what a hook raises. So nothing that
counts is told by two attributes. A pass changes the layers and the tokens of rows in place; beside them stands the
record that undoes it, from before its first change until all of it counts:

    place  | place, back = (place, marks) | ... layers, tokens and columns change ... | next place
           begin                                                                      end

:func:`returned` undoes what has no end, as often as it is called. Tokens that sessions have computed ahead of the
columns need no undoing: they belong to the tokens that the sessions have recorded (row.py). Units: columns of the
batch, padding included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from transformers import cache_utils as hf

from .inputs import Asked
from .row import Row

if TYPE_CHECKING:
    import torch

    from ..prefix_cache import PrefixCache
    from .layout import Layout
    from .states import State, States


class Shared(Protocol):
    """The common part of one model's conversations: a ``Cache``, as far as its parts ask it."""

    decoder: torch.nn.Module
    device: torch.device
    form: Form
    layout: Layout
    longest: int
    prefix_cache: PrefixCache
    states: States

    @property
    def closed(self) -> bool: ...

    @property
    def model(self) -> torch.nn.Module: ...


class Conversation(Protocol):
    """A ``Past``, as far as its form asks it. ``columns``: that are computed."""

    cache: Shared
    layers: list[hf.CacheLayerMixin]

    @property
    def columns(self) -> int: ...

    @property
    def form(self) -> Form: ...

    @property
    def rows(self) -> tuple[Row, ...]: ...

    @property
    def state(self) -> State: ...

    def fall_back(self, why: str) -> None: ...


class Form(Protocol):
    """Where the K and V of a conversation are: in tensors (copying.py), or in the cells of the cache (cells.py)."""

    name: str

    def allow(self, cache: Shared) -> None: ...

    def attach(self, model: torch.nn.Module, user: object) -> None: ...

    def detach(self, model: torch.nn.Module, user: object) -> None: ...

    def make_layers(self, past: Conversation, state: State) -> list[hf.CacheLayerMixin]: ...

    def objection(self, past: Conversation) -> str | None: ...

    def copied(self, held: list[hf.CacheLayerMixin], past: Conversation) -> list[hf.CacheLayerMixin]: ...

    def mark(self, held: list[hf.CacheLayerMixin]) -> list[object]: ...

    def go_back(self, held: list[hf.CacheLayerMixin], marked: list[object]) -> None: ...

    def taken(self, place: Place, indices: list[int]) -> list[hf.CacheLayerMixin]: ...

    def cropped(self, place: Place, tokens_to_remove: int) -> list[hf.CacheLayerMixin]: ...

    def fill(self, cache: Shared, place: Place, width: int) -> None: ...

    def expect(self, past: Conversation, ids: list[list[int]]) -> None: ...

    def compute(self, past: Conversation, ids: list[list[int]], run: Callable[[], object]) -> object: ...


class Place(NamedTuple):
    """``columns`` are computed, of which ``reused`` were known. ``prompts``: what was given to ``session`` and not yet
    to the model; ``width``: columns of that, or of the first pass. ``plain``: whether K and V follow from the tokens,
    whatever the state of the model. ``back``: where what is under way began. ``undo``: where the last pass did, and the
    call of the head that it belongs to, for as long as that call goes on."""

    state: State
    form: Form
    layers: list[hf.CacheLayerMixin]
    rows: tuple[Row, ...] = ()
    columns: int = 0
    reused: int = 0
    prompts: list[list[int]] | None = None
    width: int = 0
    plain: bool = True
    back: Back | None = None
    undo: tuple[Asked, Back] | None = None


class Back(NamedTuple):
    """``marks``: of the layers of ``place``; none where they are not touched."""

    place: Place
    marks: list[object]


def returned(place: Place) -> Place:
    """Where it stood before what has no end began."""
    if place.back is None:
        return place
    found, marks = place.back
    found.form.go_back(found.layers, marks)
    for row in place.rows:
        if row not in found.rows:
            row.close()
    return found
