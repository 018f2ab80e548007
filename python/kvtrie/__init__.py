"""kvtrie: a KV-cache engine for transformer inference. Conversations share, branch, rewind and come back.

    import kvtrie as kv

    model = kv.models.load("path/to/checkpoint")
    cache = kv.PrefixCache(model.caches(capacity=8192), fingerprint=model.fingerprint)
    with cache.begin(model.tokenizer.encode("Once upon a time")) as session:
        for token in kv.generate(model, session, max_tokens=32):
            print(model.tokenizer.decode([token]), end="")

Everything logs under the name "kvtrie" and nothing prints. Every error is a ``kvtrie.Error``; ``kv.errors`` has them by
name.
"""

from __future__ import annotations

import atexit as _atexit
import importlib as _importlib
import logging as _logging
import sys as _sys
import typing as _typing

from . import _folders, _opencl, _processors
from .errors import Error

if not getattr(_sys, "_is_gil_enabled", lambda: True)():  # importing the core would turn it on for the whole process
    raise ImportError(
        "[kvtrie] interpreter: got one that runs without the GIL, allowed one with it: start it with PYTHON_GIL=1 or "
        "-X gil=1, or use an interpreter that is not free-threaded"
    )

try:
    _processors.prepare()  # before the core opens the OpenCL loader, as are the next two
    _folders.prepare()
    _opencl.prepare()
    from . import _core  # refuses subinterpreters, before numpy does

    import numpy as _numpy  # noqa: F401  isort: skip
except ImportError as _error:  # numpy, a library, or the build is missing
    if str(_error).startswith("[kvtrie]"):
        raise
    from . import _health

    if _health.runs_as_command():
        _sys.exit(_health.write(_health.basics(), _sys.stdout))
    raise ImportError(f"{_error}; `python -m kvtrie doctor` says what is missing") from _error

from . import _devices, caches, errors, ops, results, stores, trie  # isort: skip  (errors first: the core raises them)
from ._core import Device, Session, Step, Tensor, devices, media, tensor
from ._draft_model import DraftModel
from ._draft_tree import DraftTree
from ._prediction_head import PredictionHead
from .prefix_cache import PrefixCache

from .sampling import Sampler, Sampling  # isort: skip  (as do these)
from .batch import Batch, generate_batch  # isort: skip
from .batcher import Batcher  # isort: skip
from .request import Request  # isort: skip
from .generation import Generation  # isort: skip
from .generate import generate  # isort: skip  (it uses the names above)
from .score import score  # isort: skip
from .quality import quality  # isort: skip

if _typing.TYPE_CHECKING:
    from . import hf, models, ray, replay
    from . import viz as viz

__version__: str = _core.__version__

__all__ = [
    "Batch",
    "Batcher",
    "Device",
    "DraftModel",
    "DraftTree",
    "Error",
    "Generation",
    "PredictionHead",
    "PrefixCache",
    "Request",
    "Sampler",
    "Sampling",
    "Session",
    "Step",
    "Tensor",
    "__version__",
    "caches",
    "devices",
    "errors",
    "generate",
    "generate_batch",
    "hf",
    "media",
    "models",
    "ops",
    "quality",
    "ray",
    "replay",
    "results",
    "score",
    "stores",
    "tensor",
    "trie",
]

# A library never prints: without a handler, Python would write warnings to stderr. The level decides once, here, which
# messages the core builds at all; messages below it cost nothing.
_logger = _logging.getLogger("kvtrie")
_logger.addHandler(_logging.NullHandler())
_core._log_from(min(_logger.getEffectiveLevel(), _logging.INFO))
_atexit.register(_devices.forget)


_LATER = ("hf", "models", "ray", "replay", "viz")  # loaded when first used: the first two and viz need more than numpy

if not _typing.TYPE_CHECKING:  # to type checkers, a name that is not there is an error

    def __getattr__(name: str) -> object:
        if name in _LATER:
            return _importlib.import_module(f".{name}", __name__)
        from ._moved import advice

        text = f"module {__name__!r} has no attribute {name!r}{advice(name)}"
        # An import asks whether a name is there, and would say of an AttributeError only that it is not.
        if advice(name) and _sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            raise ImportError(text, name=__name__)
        raise AttributeError(text)


def __dir__() -> list[str]:
    return sorted(__all__)
