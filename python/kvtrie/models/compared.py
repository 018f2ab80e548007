"""A model's logits beside those that transformers computes of the same files.

Concept. Both read the files by themselves, so a setting that one of them takes another way shows in the logits. Weights
are float32 in transformers; here they are what the model was loaded with, K and V are float32.

Units: differences are parts of the largest logit that transformers gives.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import Error
from ..prefix_cache import PrefixCache
from .hub import find_model

if TYPE_CHECKING:
    from .base import Model

Rows = npt.NDArray[np.float32]  # [tokens, vocab]

EXACT = 1e-3  # of weights that are those of transformers: sums in another order
ROUNDED = 3e-2  # of weights in fewer bits, each rounded by up to 2^-11 of it where it is float16
_WHOLE = ("float32", "bfloat16")  # dtypes that keep a file's numbers; bfloat16 unless it has more bits


class Difference(NamedTuple):
    """``largest``: None where nothing was compared, and ``why``. ``same``: rows with the same likeliest token."""

    rows: int = 0
    same: int = 0
    largest: float | None = None
    allowed: float = EXACT
    why: str = ""

    @property
    def is_right(self) -> bool:
        """Also where nothing was compared."""
        return self.largest is None or self.largest <= self.allowed

    def __str__(self) -> str:
        if self.largest is None:
            return f"not compared: {self.why}"
        verdict = "those of transformers" if self.is_right else "NOT those of transformers"
        return (
            f"{verdict}: {self.largest:.1e} of the largest apart (allowed {self.allowed:g}); "
            f"the same likeliest token in {self.same} of {self.rows}"
        )


def with_transformers(model: Model, path: str, text: str, most: int) -> Difference:
    """The logits of the first ``most`` tokens of ``text``; ``path``: what ``model`` was loaded from, as for ``load``.

    A model without a tokenizer is given token ids from 1 on. Says why where transformers or torch is missing, or where
    they cannot load the model; raises nothing of theirs.
    """
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return Difference(why=f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed")
    ids = _ids(model, text, most)
    try:
        wanted = _of_transformers(find_model(path), ids)
    except Error:
        raise
    except Exception as error:  # whatever a library raises that meets a model that it does not know
        said = (str(error) or type(error).__name__).strip().splitlines()[0]
        return Difference(why=f"transformers cannot load it: {said[:200]}")
    return difference(_own(model, ids), wanted, EXACT if model.dtype in _WHOLE else ROUNDED)


def difference(got: Rows, wanted: Rows, allowed: float) -> Difference:
    """Of logits that are not finite: infinite, so never right."""
    if got.shape != wanted.shape:
        return Difference(len(got), 0, float("inf"), allowed)
    apart = np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max()
    same = int((got.argmax(1) == wanted.argmax(1)).sum())
    return Difference(len(got), same, float(apart) if np.isfinite(apart) else float("inf"), allowed)


def _ids(model: Model, text: str, most: int) -> list[int]:
    if not model.has_tokenizer:
        return [1 + at % (model.config.vocab_size - 1) for at in range(most)]
    return model.tokenizer.encode(text)[:most]


def _own(model: Model, ids: list[int]) -> Rows:
    caches = model.caches(capacity=max(len(ids), 64), dtype="float32", warm_up=False)
    with PrefixCache(caches, host_bytes=0) as cache, cache.begin(ids) as session:
        rows = [np.array(model(step, all_rows=True), np.float32) for step in session.prefill()]
    return np.concatenate(rows)


def _of_transformers(path: Path, ids: list[int]) -> Rows:
    import torch
    from transformers import AutoModelForCausalLM

    place = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    found = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True, **place).eval()
    with torch.no_grad():
        logits: Rows = found(torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
    return logits
