"""Where the messages of a prompt end, by its special tokens (``message_ends`` of ``PrefixCache.begin``).

Concept. A chat template sets messages apart by special tokens, mostly several in a row with a role between them. A
later prompt parts from this one right behind such a header, where other words begin:

    ... Hi <|im_end|> \\n <|im_start|> user \\n Hello ...     one header, as its special tokens are close to each other
                                       ^ one message ends here, and the next one begins

So nobody who renders or tokenizes a prompt has to say where its messages end. A header that the prompt ends with, which
asks for an answer, is none: a state is kept before the last token of a prompt in any case.

Threads: any. Units: tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

HEADER = 8
"""Tokens from one special token to the next of the same header, at most."""


def special_ids(tokenizer: object) -> tuple[int, ...]:
    """The special tokens of ours, or of one of transformers; none where it has neither."""
    own = getattr(getattr(tokenizer, "special_tokens", None), "texts", None)
    found: Iterable[int] = getattr(tokenizer, "all_special_ids", ()) if own is None else own
    return tuple(sorted(map(int, found)))


def message_ends(tokens: object, special: Sequence[int]) -> npt.NDArray[np.int32]:
    """Lengths of the prompt ``tokens``, ascending: behind the last special token of each header, but one at its end."""
    if not isinstance(tokens, (list, tuple, range, np.ndarray)):
        return np.empty(0, np.int32)
    ids = np.asarray(tokens)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":  # refused by whoever takes the prompt
        return np.empty(0, np.int32)
    at = np.flatnonzero(np.isin(ids, special))
    last = np.append(np.diff(at) > HEADER, len(ids) - at[-1:] > HEADER)
    return (at[last] + 1).astype(np.int32)
