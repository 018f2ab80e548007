"""How decode steps go to a GPU with matrix instructions: launch by launch, or recorded and replayed as one launch.

``KVTRIE_ONE_LAUNCH`` says which, when a model warms up:

    0            launch by launch; so it is without the variable, as no GPU has measured the other form yet
    1            as one launch, where the step can be recorded (``model.graphs.stats["reason"]`` says why not)
    measured     as what took less time just now, with one conversation: steps of both forms in turns. While the helper
                 compiles beside the model (helper.py) nothing is measured, and steps are launched; ``model.warm_up()``
                 waits for it

The bits are the same. Devices of other kinds have one form, and nobody asks there.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..prefix_cache import PrefixCache

if TYPE_CHECKING:
    from .warmed import Warmed

__all__ = ["choose_step_form"]

NAME = "KVTRIE_ONE_LAUNCH"
_ALLOWED = ("", "0", "1", "measured")
_FIRST, _TURNS, _CELLS = 4, 9, 64  # steps before the first that counts, steps of each form, tokens of a cache


def choose_step_form(model: Warmed, dtype: str, measures: bool = True) -> None:
    """Has ``model`` replay its steps on a GPU, or not; ``dtype`` is that of K and V. Without ``measures`` what would
    have to be measured is launched. Raises ``ArgumentError`` for another word in the environment."""
    wanted = os.environ.get(NAME, "")
    if wanted not in _ALLOWED:
        raise ArgumentError(f"[models] {NAME}: got {wanted!r}, allowed 0, 1 or measured")
    device = model.device
    if device.kind != "gpu" or not model.replays or not device._has_matrix_instructions():
        return
    one = wanted == "1" or (wanted == "measured" and measures)
    device._step_in_one_launch(one or None)
    if one and wanted == "measured":
        model.replays = _saves_time(model, dtype)


def _saves_time(model: Warmed, dtype: str) -> bool:
    """Whether a recorded step takes less time than its launches, by the medians of both. False if none was recorded."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    with PrefixCache(model.caches(_CELLS, dtype, warm_up=False), host_bytes=0) as cache:
        session = cache.begin([0], publish=False)
        for index in range(_FIRST + 2 * _TURNS):
            model.replays = index % 2 == 0
            begun = time.perf_counter()
            model(cache.batch([session]))
            model.device.finish()
            if index >= _FIRST:
                seconds[model.replays].append(time.perf_counter() - begun)
            session.append([0])
        replayed = model.graphs.stats["replays"] >= _TURNS
        session.close()
    one, several = (sorted(seconds[each])[_TURNS // 2] for each in (True, False))
    return replayed and one < several
