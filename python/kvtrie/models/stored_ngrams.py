"""Tables of n-grams as checkpoints have them: in parts, with the numbers that their hashes are made of beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..errors import FormatError
from .ngrams import NgramTable
from .weights import Array, WeightSource, concatenated


def join_tables(sources: Mapping[str, WeightSource], name: str) -> dict[str, WeightSource]:
    """``sources`` with the table ``name`` as one tensor where a file has it as ``shard_0``, ``shard_1``, ..."""
    found, stem = dict(sources), name.removesuffix("weight") + "shard_"
    numbers = {each: each[len(stem) :].removesuffix(".weight") for each in sources if each.startswith(stem)}
    if not numbers or not all(number.isdecimal() for number in numbers.values()):
        return found
    parts = [found.pop(each) for each in sorted(numbers, key=lambda each: int(numbers[each]))]
    found[name] = replace(concatenated(name, parts), rows=lambda begin, end: _rows(parts, begin, end))
    return found


def _rows(parts: Sequence[WeightSource], begin: int, end: int) -> Array:
    """Of all parts, one below the other; no more is read."""
    found, first = [], 0
    for part in parts:
        last = first + part.shape[0]
        if begin < last and end > first:
            found.append(part.rows(max(begin - first, 0), min(end, last) - first))
        first = last
    return np.concatenate(found) if found else parts[0].rows(0, 0)


def compare_hashes(sources: Mapping[str, WeightSource], prefix: str, table: NgramTable) -> None:
    """Raises ``kv.errors.FormatError`` where stored multipliers, primes or offsets are not those of ``table``, which
    follow from the configuration."""
    wanted = {
        "layer_multipliers": table.multipliers,
        "ngram_heads_vocab_sizes": table.primes,
        "ngram_heads_offsets": table.offsets,
    }
    for name, numbers in wanted.items():
        source = sources.get(f"{prefix}.{name}")
        if source is None:
            continue
        if source.dtype != "I64" or source.shape != (len(numbers),) or source.read().tolist() != list(numbers):
            raise FormatError(
                f"[models] {source.origin}: {prefix}.{name}: got {source.dtype} {list(source.shape)} with other "
                f"numbers, allowed I64 {list(numbers)}, which follow from the configuration"
            )
