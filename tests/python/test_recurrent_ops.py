"""ops.causal_conv1d and ops.gated_delta against numpy: cuts and neighbours change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kvtrie as kv
from recurrent_reference import CHANNELS, K_DIM, TAIL, V_DIM, V_HEADS, Rows, close

pytestmark = pytest.mark.usefixtures("nothing_left_over")


def test_segments_equal_the_whole() -> None:
    """SegmentEquivalence: states at any offsets, and not a bit of y depends on them."""
    rows = Rows(23, 1)
    y, end = rows.conv()
    out, state = rows.delta()
    close(y, rows.conv_reference()[0])
    close(out, rows.delta_reference()[0])
    assert y.shape == (23, CHANNELS)
    assert (end.shape, state.shape) == ((1, TAIL, CHANNELS), (1, V_HEADS, V_DIM, K_DIM))
    for cuts in ([1], [2, 3, 9], [22], list(range(1, 23))):
        y_cut, tails = rows.conv(None, [0, 23], [cuts])
        out_cut, states = rows.delta(None, [0], [cuts])
        assert (y_cut == y).all()
        assert (out_cut == out).all()
        assert (tails[-1] == end[0]).all()
        assert (states[-1] == state[0]).all()
        close(tails, rows.conv_reference()[1][[*cuts, 23]])
        close(states, rows.delta_reference()[1][[*cuts, 23]])
        y_rest, _ = rows[cuts[-1] :].conv(tails[-2:-1])  # on from the state at the last cut
        out_rest, _ = rows[cuts[-1] :].delta(states[-2:-1])
        assert (y_rest == y[cuts[-1] :]).all()
        assert (out_rest == out[cuts[-1] :]).all()


def test_segments_of_several_sequences() -> None:
    """SegmentEquivalenceBatched: sequences of different length, each as if it were alone."""
    parts = [Rows(5, 2), Rows(1, 3), Rows(17, 4)]
    batch = parts[0] + parts[1] + parts[2]
    random = np.random.default_rng(5)
    tails = random.standard_normal((3, TAIL, CHANNELS)).astype(np.float32)
    states = random.standard_normal((3, V_HEADS, V_DIM, K_DIM)).astype(np.float32)
    starts, cuts = np.array([0, 5, 6, 23]), [[2, 4], [], [16]]
    y, tails_out = batch.conv(tails, starts, cuts)
    out, states_out = batch.delta(states, starts, cuts)
    assert (len(tails_out), len(states_out)) == (6, 6)
    at = 0
    for i, part in enumerate(parts):
        y_alone, tail = part.conv(tails[i : i + 1])
        out_alone, state = part.delta(states[i : i + 1])
        assert (y[starts[i] : starts[i + 1]] == y_alone).all()
        assert (out[starts[i] : starts[i + 1]] == out_alone).all()
        ends = [*cuts[i], len(part.x)]
        close(tails_out[at : at + len(ends)], part.conv_reference(tails[i])[1][ends])
        close(states_out[at : at + len(ends)], part.delta_reference(states[i])[1][ends])
        at += len(ends)
        assert (tails_out[at - 1] == tail[0]).all()
        assert (states_out[at - 1] == state[0]).all()


def test_half_precision_states_and_narrow_kernels() -> None:
    rows = Rows(4, 6)
    tails = np.random.default_rng(1).standard_normal((1, TAIL, CHANNELS)).astype(np.float16)
    y, out = kv.ops.causal_conv1d(rows.x, rows.weight, tails)
    assert out is not None
    assert out.dtype == "float16"
    close(y, rows.conv_reference(tails[0])[0])
    assert (np.asarray(out)[0] == rows.x[1:].astype(np.float16)).all()
    y, out = kv.ops.causal_conv1d(rows.x, rows.weight[:, :1])
    assert out is None
    assert (np.asarray(y) == rows.x * rows.weight[:, 0]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"row_starts": [1, 4]}, "row_starts: got 1 first, allowed 0 first"),
        ({"row_starts": []}, "row_starts: got none"),
        ({"row_starts": [0, 2, 2, 4]}, "row_starts: got 2 after 2"),
        ({"row_starts": [0, 5]}, "row_starts: got 4 after 5"),
        ({"row_starts": [0, 2], "boundaries": [[1]]}, "boundaries: got 1 lists, allowed 2"),
        ({"boundaries": [[4]]}, "boundaries[0]: got 4 after 0"),
        ({"boundaries": [[0]]}, "boundaries[0]: got 0 after 0"),
        ({"boundaries": [[2, 1]]}, "boundaries[0]: got 1 after 2"),
        ({"states": np.zeros((2, TAIL, CHANNELS), np.float32)}, "allowed 1 states"),
        ({"states": np.zeros((1, TAIL + 1, CHANNELS), np.float32)}, "states_in: got"),
    ],
)
def test_wrong_segments_are_refused(arguments: dict[str, Any], words: str) -> None:
    rows = Rows(4, 1)
    with pytest.raises(kv.errors.ArgumentError) as refused:
        kv.ops.causal_conv1d(rows.x, rows.weight, **arguments)
    assert words in str(refused.value)
    if "states" not in arguments:
        with pytest.raises(kv.errors.ArgumentError):
            kv.ops.gated_delta(rows.q, rows.k, rows.v, rows.g, rows.beta, **arguments)


def test_wrong_types_are_refused() -> None:
    rows = Rows(4, 1)
    with pytest.raises(kv.errors.ArgumentTypeError, match="boundaries"):
        kv.ops.causal_conv1d(rows.x, rows.weight, None, [0, 4], 3)  # type: ignore[arg-type]
    half = kv.tensor(np.zeros((1, V_HEADS, V_DIM, K_DIM), np.float16))
    with pytest.raises(kv.errors.ArgumentTypeError, match="states"):
        kv.ops.gated_delta(rows.q, rows.k, rows.v, rows.g, rows.beta, half)
