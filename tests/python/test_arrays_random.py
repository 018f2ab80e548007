"""Tokens, K, V and queries in arrays of every dtype, stride and byte order: taken for their values, or refused by name."""

from __future__ import annotations

import pytest

from array_inputs import any_arrays


@pytest.mark.usefixtures("device")
def test_arrays_mean_their_values_or_are_refused() -> None:
    any_arrays()
