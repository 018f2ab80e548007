"""Traces: requests in the order of their arrival, from a file, a generator or a list.

A trace has symbols. In a token-level trace a symbol is one token. In a Mooncake trace it is the id of a block of
``symbol_tokens`` tokens, equal where the whole prefix up to the block's end is equal, so that ids can go into the trie
as they are.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

import numpy as np

from .._arguments import each_of, flag, whole
from .._paths import path_text
from .lines import LARGEST, MOST_TOKENS, Line, PathLike, count_lines, lines_of, opened
from .tokens import NO_TOKENS, Int32Array, seed_of, stream

MOST_BLOCKS = 1 << 20  # in one request


@dataclass(frozen=True)
class Request:
    """A prompt that arrives at ``time`` seconds, and what was generated for it, both int32 symbols.

    ``generated``: tokens of the answer, where the trace has their number and not their ids.
    """

    time: float
    tokens: Int32Array
    output: Int32Array = field(default_factory=lambda: NO_TOKENS)
    namespace: str = "default"
    session: str = ""
    generated: int = 0


@dataclass(frozen=True)
class Trace:
    """Where requests come from; iterating starts over each time.

    ``symbol_tokens``: tokens that a symbol stands for. ``whole``: a prompt that is known to its end counts as reused to
    its end; else one token is left to compute, as in a session. ``count``: requests where that is known beforehand.
    """

    name: str
    source: Callable[[], Iterable[Request]]
    symbol_tokens: int = 1
    whole: bool = False
    count: Optional[int] = None

    def __iter__(self) -> Iterator[Request]:
        return iter(self.source())


def of_requests(requests: Iterable[Request], name: str = "requests", whole: bool = False) -> Trace:
    """A trace of requests that are in memory already; ``whole`` as in ``Trace``."""
    kept = tuple(each_of(requests, Request, "of_requests", "requests", "Request objects"))
    return Trace(name, lambda: kept, whole=whole, count=len(kept))


def read_mooncake(path: PathLike, block: int = 512, expand: bool = False) -> Trace:
    """A file of lines ``{"timestamp": ms, "input_length", "output_length", "hash_ids": [one id a block]}``.

    One symbol a block; with ``expand`` each block becomes ``block`` pseudo-tokens that begin with its id, so that
    different ids part at their first token. A last block that is not full counts as a full one in both. Generated
    tokens have no ids in this format, only a length (0 where it is absent), and are not replayed.
    """
    block = whole(block, "read_mooncake", "block", 1, 1 << 20)
    flag(expand, "read_mooncake", "expand")
    name = Path(path_text(path, "read_mooncake", "trace")).name

    def source() -> Iterator[Request]:
        before = 0.0
        for line in lines_of(path):
            time = line.number_at_least("timestamp", line.value("timestamp"), before)
            ids = _block_ids(line, block)
            if expand and len(ids) * block > MOST_TOKENS:
                line.fail(
                    "input_length", line.value("input_length"), f"at most {MOST_TOKENS} where blocks are expanded"
                )
            answer = line.whole("output_length", line.fields.get("output_length", 0))
            yield Request(time / 1000, _expand(ids, block) if expand else ids, generated=answer)
            before = time

    return Trace(name, source, 1 if expand else block, True, count_lines(path))


def _block_ids(line: Line, block: int) -> Int32Array:
    length = line.whole("input_length", line.value("input_length"), 1)
    ids = line.value("hash_ids")
    blocks = -(-length // block)
    if not isinstance(ids, list):
        line.fail("hash_ids", ids, "a list")
    if blocks > MOST_BLOCKS:
        line.fail("input_length", length, f"at most {MOST_BLOCKS} blocks of {block}")
    if len(ids) != blocks:
        line.fail("count of hash_ids", len(ids), f"{blocks}: one for each {block} of input_length {length}")
    for index, each in enumerate(ids):
        if type(each) is not int or not 0 <= each <= LARGEST:
            line.whole(f"hash_ids[{index}]", each)
    return np.array(ids, np.int32)


def _expand(ids: Int32Array, block: int) -> Int32Array:
    tokens = np.empty((len(ids), block), np.int32)
    for row, block_id in zip(tokens, ids.tolist()):
        row[0] = block_id
        row[1:] = stream(block_id, 0, block - 1)
    return tokens.reshape(-1)


def write_mooncake(trace: Iterable[Request], path: PathLike, block: int = 512) -> int:
    """Writes token-level requests as a Mooncake trace with blocks of ``block`` tokens; returns the lines.

    Equal ids mean equal namespace and equal tokens up to the block's end; a last block that is not full has an id of
    its own. Ids count up from 0 in the order of their first use.
    """
    known: dict[bytes, int] = {}
    lines = 0
    whole(block, "write_mooncake", "block", 1)
    requests = each_of(trace, Request, "write_mooncake", "trace", "Request objects")
    with opened(path, "wb", "write_mooncake") as file:
        for request in requests:
            ids = []
            above = seed_of(request.namespace).to_bytes(8, "little")
            for start in range(0, len(request.tokens), block):
                part = request.tokens[start : start + block]
                above = _digest(above, part)
                ids.append(known.setdefault(above, len(known)))
            fields = {
                "timestamp": round(request.time * 1000),
                "input_length": len(request.tokens),
                "output_length": len(request.output),
                "hash_ids": ids,
            }
            file.write(json.dumps(fields).encode() + b"\n")
            lines += 1
    return lines


def _digest(above: bytes, tokens: Int32Array) -> bytes:
    return hashlib.blake2b(above + tokens.astype("<i4").tobytes(), digest_size=16).digest()
