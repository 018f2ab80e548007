"""ops.ssd, the scan of Mamba-2, against numpy in float64: no bit depends on cuts; caches go on from states."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest

import kvtrie as kv
from recurrent_reference import close, ssd_reference

pytestmark = pytest.mark.usefixtures("nothing_left_over")

GROUPS, HEADS, HEAD_DIM, STATE = 2, 4, 6, 12


class Rows:
    """Random rows of one layer; slices are rows again."""

    def __init__(self, count: int, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.x = random.standard_normal((count, HEADS, HEAD_DIM)).astype(np.float32)
        self.dt = np.abs(random.standard_normal((count, HEADS))).astype(np.float32)
        self.b = random.standard_normal((count, GROUPS, STATE)).astype(np.float32)
        self.c = (random.standard_normal((count, GROUPS, STATE)) / np.sqrt(STATE)).astype(np.float32)
        fixed = np.random.default_rng(7)
        self.a = -np.abs(fixed.standard_normal(HEADS)).astype(np.float32)
        self.d = fixed.standard_normal(HEADS).astype(np.float32)

    def __getitem__(self, rows: slice) -> Rows:
        part = Rows(0, 0)
        for name in ("x", "dt", "b", "c"):
            setattr(part, name, getattr(self, name)[rows])
        return part

    @property
    def arguments(self) -> tuple[Any, ...]:
        return self.x, self.dt, self.a, self.b, self.c, self.d

    def ssd(self, *rest: Any, **named: Any) -> tuple[Any, Any]:
        y, states = kv.ops.ssd(*self.arguments, *rest, **named)
        return np.asarray(y), np.asarray(states)

    def reference(self, state: Optional[Any] = None, least: float = 0.0, most: float = np.inf) -> tuple[Any, Any]:
        start = np.zeros((HEADS, HEAD_DIM, STATE)) if state is None else state
        return ssd_reference(*self.arguments, start, least, most)


def test_segments_equal_the_whole() -> None:
    rows = Rows(23, 1)
    y, state = rows.ssd()
    close(y, rows.reference()[0])
    for cuts in ([1], [2, 3, 9], [22], list(range(1, 23))):
        y_cut, states = rows.ssd(boundaries=[cuts])
        assert (y_cut == y).all()
        assert (states[-1] == state[0]).all()
        close(states, rows.reference()[1][[*cuts, 23]])
        y_rest, _ = rows[slice(cuts[-1], None)].ssd(states=states[-2:-1])
        assert (y_rest == y[cuts[-1] :]).all()


@pytest.mark.parametrize(("least", "most"), [(0.3, None), (0.0, 0.9), (0.5, 0.5)])
def test_steps_are_held_within_limits(least: float, most: Optional[float]) -> None:
    rows = Rows(9, 2)
    y, states = rows.ssd(dt_min=least, dt_max=most)
    wanted, ends = rows.reference(least=least, most=np.inf if most is None else most)
    close(y, wanted)
    close(states[0], ends[-1])
    assert np.abs(y - rows.ssd()[0]).max() > 0.01


def test_a_cache_goes_on_from_its_states() -> None:
    """The recurrent cache on the device and on the host, in steps of any size: the bits or numbers of one launch."""
    rows, parts = Rows(14, 3), [(0, 5), (5, 6), (6, 14)]
    whole, _ = rows.ssd()
    for device in (None, "host"):
        cache = kv.caches.RecurrentCache([0], 0, 0, HEADS, HEAD_DIM, STATE, 8, dtype="float32", device=device)
        seen = []
        for begin, end in parts:
            cache.start_forward(list(range(begin, end)), [0] * (end - begin))
            seen.append(np.asarray(cache.ssd(0, *rows[slice(begin, end)].arguments)))
        if device is None:
            assert (np.concatenate(seen) == whole).all()
        else:
            close(np.concatenate(seen), rows.reference()[0])
        assert not cache.check()


def test_wrong_arguments_are_refused() -> None:
    rows = Rows(4, 1)
    with pytest.raises(kv.errors.ArgumentError, match=r"a: got"):
        kv.ops.ssd(rows.x, rows.dt, rows.a[:3], rows.b, rows.c, rows.d)
    with pytest.raises(kv.errors.ArgumentError, match=r"dt_limits: got 2 and 1"):
        rows.ssd(dt_min=2.0, dt_max=1.0)
    with pytest.raises(kv.errors.ArgumentTypeError, match=r"dt_max"):
        rows.ssd(dt_max="none")
    cache = kv.caches.RecurrentCache([0], 0, 0, HEADS, HEAD_DIM, STATE, 8, dtype="float32")
    cache.start_forward([0, 1, 2, 3], [0] * 4)
    with pytest.raises(kv.errors.ArgumentError, match=r"b: got shape .*, allowed \[4, a divisor of 4, 12\]"):
        cache.ssd(0, rows.x, rows.dt, rows.a, rows.b[:, [0, 0, 0]], rows.c, rows.d)
    with pytest.raises(kv.errors.ArgumentError, match=r"d: got shape"):
        cache.ssd(0, rows.x, rows.dt, rows.a, rows.b, rows.c, rows.d[:2])
    cache.ssd(0, *rows.arguments)
