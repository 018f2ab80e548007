"""llama.cpp's n-gram drafters as a peer, on the weights and the context of peers/llama.py.

    with Model(file) as model, model.context(tokens=4096) as context:
        context.prefill(0, prompt[:-1])
        made = answer(context, Setting("ngram-simple", 12, 1, 48), prompt, None, 200, known=[])
        made.tokens, made.seconds, made.accepted

``./dev peers`` builds the library from llama_drafts.cpp, which says what its loop does. Each answer has a new drafter,
which is told what ``known`` has, as one server's slots share an ``ngram-mod`` and ``--lookup-cache-dynamic`` is read at
its start; the maps see their own text only. Its time counts the answer's own prompt being read, not that.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from peers import llama

LIBRARY = llama.LIBRARY / "libllama-drafts.so"


class Setting(NamedTuple):
    """``match``: tokens that have to agree; ``least``, ``most``: drafts of ngram-mod; of the maps ``least`` is how
    often a place must have been seen. ngram-cache has none of them: it drafts up to 8 by 1 to 4 tokens."""

    type: str
    match: int = 12
    least: int = 1
    most: int = 48

    def __str__(self) -> str:
        own = "" if self.type == "ngram-cache" else f" {self.match} {self.least} {self.most}"
        return self.type + own


# The defaults, what its documentation names, and shorter ones, as rows of a dense model on a processor are dear.
SETTINGS = [
    Setting("ngram-simple"),
    Setting("ngram-simple", 3, 1, 8),
    Setting("ngram-simple", 3, 1, 15),
    Setting("ngram-map-k"),
    Setting("ngram-map-k", 3, 1, 15),
    Setting("ngram-map-k4v", 8, 2, 8),
    Setting("ngram-map-k4v", 3, 1, 15),
    Setting("ngram-mod", 24, 48, 64),
    Setting("ngram-mod", 16, 1, 48),
    Setting("ngram-mod", 4, 1, 15),
    Setting("ngram-cache"),
]


class Answer(NamedTuple):
    """Greedy, and what its drafter did."""

    tokens: list[int]
    seconds: float
    steps: int
    proposed: int
    accepted: int


class _Figures(ctypes.Structure):
    _fields_ = [
        ("steps", ctypes.c_int32),
        ("proposed", ctypes.c_int32),
        ("accepted", ctypes.c_int32),
        ("seconds", ctypes.c_double),
    ]


def installed() -> bool:
    """Whether ``./dev peers`` has built the library."""
    return llama.installed() and LIBRARY.exists()


@functools.cache
def _library() -> Any:
    llama.api()  # loads llama.cpp first
    found = ctypes.CDLL(str(LIBRARY))
    found.kvtrie_drafter_open.restype = ctypes.c_void_p
    return found


@dataclass
class _Drafter:
    """None of ``setting``: plain decoding."""

    setting: Setting | None
    known: Sequence[Sequence[int]]

    def __enter__(self) -> ctypes.c_void_p:
        self.handle = ctypes.c_void_p()
        if self.setting is None:
            return self.handle
        kind, match, least, most = self.setting
        cached = kind == "ngram-cache" and any(self.known)
        with tempfile.TemporaryDirectory() as folder:
            file = str(Path(folder) / "known").encode() if cached else b""
            if cached:
                _library().kvtrie_drafter_write_known(file, *_given([each for text in self.known for each in text]))
            self.handle.value = _library().kvtrie_drafter_open(kind.encode(), match, least, most, file)
        if not self.handle.value:
            raise llama.LlamaError(f"[llama] drafter: got {self.setting}, allowed a type of llama.cpp's")
        for text in self.known:
            if kind == "ngram-mod":
                _library().kvtrie_drafter_tell(self.handle, *_given(text))
        return self.handle

    def __exit__(self, *_: object) -> None:
        if self.handle.value:
            _library().kvtrie_drafter_close(self.handle)


def _given(tokens: Sequence[int]) -> tuple[Any, int]:
    held = np.asarray(tokens, np.int32)
    return held.ctypes.data_as(ctypes.POINTER(ctypes.c_int32)), len(held)


def answer(
    context: llama.Context,
    setting: Setting | None,
    prompt: Sequence[int],
    text: Sequence[int] | None,
    count: int,
    known: Sequence[Sequence[int]] = (),
) -> Answer:
    """``count`` tokens behind ``prompt``, all of which but the last ``context`` holds; ``text``: those that are to
    come, None for the likeliest. ``setting``: None for plain decoding; ``known``: texts of other requests."""
    made, figures = np.empty(count, np.int32), _Figures()
    own, length = _given(prompt)
    forced = None if text is None else _given(text)[0]
    with _Drafter(setting, known) as drafter:
        code = _library().kvtrie_drafter_answer(
            ctypes.c_void_p(_address(context.handle)), drafter, own, length, forced, count, _given(made)[0],
            ctypes.byref(figures),
        )  # fmt: skip
    if code != 0:
        raise llama.LlamaError(f"[llama] drafted answer: got code {code}, allowed 0")
    return Answer(made.tolist(), figures.seconds, figures.steps, figures.proposed, figures.accepted)


def _address(handle: Any) -> int | None:
    """Of what the declarations give as a number or as a pointer."""
    return handle if isinstance(handle, int) else ctypes.cast(handle, ctypes.c_void_p).value
