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

from typing import TYPE_CHECKING, NamedTuple

from transformers import cache_utils as hf

from .inputs import Asked
from .row import Row

if TYPE_CHECKING:
    from .cells import Cells
    from .copying import Copying
    from .states import State


class Place(NamedTuple):
    """``columns`` are computed, of which ``reused`` were known. ``prompts``: what was given to ``session`` and not yet
    to the model; ``width``: columns of that, or of the first pass. ``plain``: whether K and V follow from the tokens,
    whatever the state of the model. ``back``: where what is under way began. ``undo``: where the last pass did, and the
    call of the head that it belongs to, for as long as that call goes on."""

    state: State
    form: Copying | Cells
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
