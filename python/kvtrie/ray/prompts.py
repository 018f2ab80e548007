"""Rows to tokens: the stage in front of the sort. It needs a tokenizer, and no weights.

A prompt's tokens travel as a key: four bytes each, the high ones first, so that keys sort as the tokens do, prompts
that share a prefix stand side by side, and whoever reads the key has the tokens.

Threads: stateless tasks of Ray's, several at a time; a process keeps the tokenizers that it read last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Union, cast

import numpy as np
import numpy.typing as npt

from .._arguments import refusal
from .._prompts import Prompt, token_ids
from ..errors import ArgumentError, Error
from ..models import load_tokenizer
from ..models.tokenizer import Message, Tokenizer, template_variables
from ..sampling import whole

if TYPE_CHECKING:
    from pyarrow import Table

KEY = "__kvtrie_key"
ERROR = "__kvtrie_error"
REFUSED = (Error, ValueError, TypeError)  # of a row alone: nothing is computed here

TokenizerSource = Union[str, Callable[[], Tokenizer], None]


@dataclass(frozen=True)
class Prompts:
    """The prompt of a row. ``source``: of the tokenizer; None: there are token ids only. ``added``: the columns
    that the result has beside the dataset's own."""

    where: str
    column: str
    source: TokenizerSource
    template: Mapping[str, object]
    added: tuple[str, ...]
    keeps_errors: bool


def encode(table: Table, prompts: Prompts) -> Table:
    """With two more columns: the keys, and why a row has none, where errors are kept; else it raises."""
    import pyarrow

    _require_columns(table.column_names, prompts)
    keys: list[bytes] = []
    errors: list[str | None] = []
    for value in table[prompts.column].to_pylist():
        key, error = _encoded(value, prompts)
        keys.append(key)
        errors.append(error)
    table = table.append_column(KEY, pyarrow.array(keys, pyarrow.large_binary()))
    return table.append_column(ERROR, pyarrow.array(errors, pyarrow.string()))


def key_of(tokens: npt.NDArray[np.int32]) -> bytes:
    """``tokens`` [n], none of them negative."""
    return tokens.astype(">u4").tobytes()


def tokens_of(key: bytes) -> npt.NDArray[np.int32]:
    """The tokens of a key, int32 [n]."""
    return np.frombuffer(key, ">u4").astype(np.int32)


def row_seed(seed: int, tokens: Sequence[int] | npt.NDArray[np.integer]) -> int:
    """The seed that ``kv.ray.generate(..., seed=seed)`` gives a row with the prompt ``tokens``.

    It depends on nothing else, so a row's answer is the same in any batch, on any actor, in any order;
    ``kv.generate(model, tokens, seed=kv.ray.row_seed(seed, tokens))`` gives it again.
    """
    whole("seed", seed, 0)
    digest = hashlib.blake2b(f"{seed}".encode(), digest_size=8)
    digest.update(b"\0" + key_of(np.asarray(tokens, np.int32)))
    return int.from_bytes(digest.digest(), "little")


def _require_columns(names: Sequence[str], prompts: Prompts) -> None:
    if prompts.column not in names:
        raise ArgumentError(f"[{prompts.where}] prompt: got column {prompts.column!r}, allowed {', '.join(names)}")
    for name in prompts.added:
        if name in names:
            raise ArgumentError(f"[{prompts.where}] dataset: got a column {name!r}, allowed others: the result has one")


def _encoded(value: object, prompts: Prompts) -> tuple[bytes, str | None]:
    try:
        tokens = token_ids(_NoModel(), _ids(value, prompts), prompts.where)
        if tokens.min() < 0:
            raise ArgumentError(f"[{prompts.where}] prompt: got token id {tokens.min()}, allowed 0 or more")
        return key_of(tokens), None
    except REFUSED as error:
        if not prompts.keeps_errors:
            raise
        return b"", f"{error}"


class _NoModel:
    """In the place of one where every prompt is token ids by now."""

    def __call__(self, step: object) -> npt.NDArray[np.float32]:
        raise NotImplementedError


def _ids(value: object, prompts: Prompts) -> Prompt:
    if isinstance(value, str):
        return _tokenizer(prompts).encode(value)
    if isinstance(value, (list, np.ndarray)) and len(value) and isinstance(value[0], Mapping):
        messages = [_message(each) for each in value]
        variables = template_variables(prompts.template, prompts.where, "template", ("chat_template", "tools"))
        ids: list[int] = _tokenizer(prompts).apply_chat_template(messages, add_generation_prompt=True, **variables)
        return ids
    if not isinstance(value, (list, np.ndarray)):
        raise refusal(value, prompts.where, "prompt", "a text, messages, or token ids")
    return cast(Prompt, value)


def _message(value: Mapping[str, object]) -> Message:
    """Without the fields that a table gives every message because another one has them."""
    return {name: each for name, each in value.items() if each is not None}


def _tokenizer(prompts: Prompts) -> Tokenizer:
    found = None if prompts.source is None else _read_tokenizer(prompts.source)
    if found is None:
        allowed = "token ids: the model has no tokenizer; `tokenizer` names another one"
        raise ArgumentError(f"[{prompts.where}] prompt: got a text or messages, allowed {allowed}")
    return found


@lru_cache(maxsize=2)
def _read_tokenizer(source: str | Callable[[], Tokenizer]) -> Tokenizer | None:
    return source() if callable(source) else load_tokenizer(source)
