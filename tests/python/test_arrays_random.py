"""Tokens, K, V and queries in arrays of every dtype, stride and byte order mean their values, or are refused."""

from __future__ import annotations

import pytest

from array_inputs import any_arrays


@pytest.mark.usefixtures("device")
def test_arrays_mean_their_values_or_are_refused() -> None:
    any_arrays()
