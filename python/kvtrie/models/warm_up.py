"""The kernels that a model compiles before its first token: a dry run of one layer of each kind, without a cache.

Layers that hold the same tensors in the same types, rotate alike and see alike launch the same kernels, so one of each
kind stands for all. A kernel depends on dtypes and sizes, and that of a product on whether there are few rows; so each
of these layers runs at the numbers of rows in ``PACKED_ROWS``. Attention and storing K and V go to ``kv.ops.warm_up``,
recurrent states are seen to by their caches. Where steps are replayed (``kv.ops.StepGraphs``), two are recorded on
caches that go at once: the program that replays them depends on the whole step. On GPUs, whose products may store K and
V, the same two are launched. Activations are those of token 0;
nothing but time depends on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from .. import ops
from .._core import Tensor, tensor
from ..prefix_cache import PrefixCache
from .freed import give_back
from .linear import Packed
from .step_form import choose_step_form
from .step_inputs import Rows, checked_tokens
from .warmed import Warmed
from .weights import Progress

if TYPE_CHECKING:
    from .helper import Helper

REPLAY_CELLS = 64  # more than two steps claim
PACKED_ROWS = (1, 2, 9)  # one of each number that packed products tell apart (csrc/ops/matmul_variant.cpp)
STEP_ROWS = (1, 2)  # of these, those of whole steps
CLBLAST_ROWS = (1, 9, 512)  # vector, direct and indirect products of CLBlast


class DryStep:
    """A step of one session without a history: takes what layers give, and gives zeros back where they attend."""

    def __init__(self, model: Warmed, rows: int) -> None:
        config = model.config
        self._widths = {
            layer: config.num_attention_heads * group.value_width(config)
            for group in model.attention_groups(config)
            for layer in group.layers
        }
        self._device = model.device
        self.tokens = np.zeros(rows, np.int32)
        self.positions = np.arange(rows, dtype=np.int32)
        self.sequences = np.zeros(rows, np.int32)
        self.sessions = [None]
        self._put: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(
        self,
        layer: int,  # noqa: ARG002 (as a step has it)
        q: Tensor,
        k: Tensor | None = None,  # noqa: ARG002
        v: Tensor | None = None,
        *_: object,
        **__: object,
    ) -> Tensor:
        return self._zeros(*q.shape[:2], q.shape[2] if v is None else v.shape[2])

    def attend_qkv(
        self,
        layer: int,
        qkv: Tensor,
        *_: object,
        weight: Packed | None = None,
        bias: Tensor | None = None,
        norm: tuple[Tensor, float, float] | None = None,
        **__: object,
    ) -> Tensor:
        if weight is not None:
            ops.matmul(qkv, weight, add=bias, norm=norm)
        return self._zeros(qkv.shape[0], self._widths[layer])

    def put(self, layer: int, k: Tensor, v: Tensor | None) -> None:
        self._put[layer] = k, k if v is None else v

    def get(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """The rows themselves, in float32; ``_one_row`` and ``_steps`` see those of cells."""
        k, v = self._put[layer]
        return k, v, self._zeros(k.shape[0], k.shape[0])

    def choose_keys(self, layer: int, q: Tensor, weights: Tensor, count: int) -> Tensor:  # noqa: ARG002
        """Of keys that ``_one_row`` and ``_steps`` see where they lie."""
        return tensor(np.zeros((q.shape[0], min(count, q.shape[0])), np.int32), device=self._device)

    def choose_blocks(self, layer: int, q: Tensor, weights: Tensor, ratio: int, count: int, *_: object) -> Tensor:  # noqa: ARG002
        return tensor(np.zeros((q.shape[0], ratio), np.int32), device=self._device)

    def attend_chosen(self, layer: int, q: Tensor, chosen: Tensor, scale: float | None = None) -> Tensor:  # noqa: ARG002
        return self._zeros(*q.shape[:2], self._widths[layer] // q.shape[1])

    def conv(self, layer: int, x: Tensor, weight: Tensor) -> Tensor:  # noqa: ARG002
        return x

    def gated_delta(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:  # noqa: ARG002
        return v

    def ssd(self, layer: int, x: Tensor, *_: object) -> Tensor:  # noqa: ARG002
        return x

    def _zeros(self, *shape: int) -> Tensor:
        return tensor(np.zeros(shape, np.float32), device=self._device)


def kinds_of_layers(model: Warmed) -> list[int]:
    """The first layer of each kind."""
    config = model.config
    groups = {layer: number for number, group in enumerate(model.attention_groups(config)) for layer in group.layers}
    first: dict[tuple[object, ...], int] = {}
    for index, shapes in enumerate(model.layers_shapes(config)):
        kept = tuple(model.kept.get(f"model.layers.{index}.{name.removesuffix('.weight')}") for name in sorted(shapes))
        first.setdefault((groups.get(index), tuple(sorted(shapes.items())), kept), index)
    return list(first.values())


def warm_up(model: Warmed, dtype: str | None, progress: Progress | None) -> None:
    """See :meth:`Model.warm_up`."""
    _run(model, _all_parts(model, dtype), progress)


def warm_up_first(model: Warmed, helper: Helper, progress: Progress | None) -> None:
    """Kernels of any first token, while ``helper`` compiles attention; as long as that takes, products of more rows."""
    choose_step_form(model, helper.dtype, measures=False)
    parts: list[Callable[[], None]] = [lambda: _layers(model, 1), lambda: _choice(model)]
    for rows in PACKED_ROWS[1:] if model._packs else ():
        parts.append(lambda rows=rows: None if helper.attention_is_there() else _layers(model, rows))  # type: ignore[misc]
    parts += [helper.wait_for_attention, lambda: _one_row(model, helper.dtype)]
    _run(model, parts, progress)


def _run(model: Warmed, parts: list[Callable[[], None]], progress: Progress | None) -> None:
    for done, part in enumerate(parts, 1):
        part()
        if progress is not None:
            progress(done, len(parts))
    model.device.finish()
    give_back()


def _all_parts(model: Warmed, dtype: str | None) -> list[Callable[[], None]]:
    parts: list[Callable[[], None]] = []
    if dtype is not None and model.attention_groups(model.config):
        parts.append(lambda: _attention(model, dtype))
    for rows in PACKED_ROWS if model._packs else CLBLAST_ROWS:
        parts.append(lambda rows=rows: _layers(model, rows))  # type: ignore[misc]
    parts.append(lambda: _rest(model))
    stores = model.device.kind == "gpu" and bool(model.attention_groups(model.config))  # products may store K and V
    if dtype is not None and (model.replays or stores):
        parts.append(lambda: _steps(model, dtype))
    return parts


def _one_row(model: Warmed, dtype: str) -> None:
    """A step of one row, launched operation by operation, on caches that go at once."""
    with PrefixCache(model.caches(REPLAY_CELLS, dtype, warm_up=False), host_bytes=0) as cache:
        step = cache.batch([cache.begin([0], publish=False)])
        model._launch(step, checked_tokens(step, model.config), Rows(step, False))


def _choice(model: Warmed) -> None:
    ops.argmax(tensor(np.zeros((1, model.config.vocab_size), np.float32), device=model.device))


def _attention(model: Warmed, dtype: str) -> None:
    config = model.config
    groups = [group for group in model.attention_groups(config) if not group.keys_only]
    for heads, latent in {(group.heads_of(config), group.latent_dim) for group in groups}:
        ops.warm_up(
            config.num_attention_heads,
            *heads,
            latent_dim=latent,
            dtype=dtype,
            weight_dtype=Counter(model.kept.values()).most_common(1)[0][0],
            device=model.device,
            precision=model.precision,
        )


def _layers(model: Warmed, rows: int) -> None:
    step = DryStep(model, rows)
    x = model.through(kinds_of_layers(model), step, step.tokens, None)
    if model.dtype not in ("float32", "float16", "bfloat16"):  # the head's type may be that of no layer
        model._head(x, norm=model._norm)


def _steps(model: Warmed, dtype: str) -> None:
    """Steps of one session each for a row, on caches that go at once; how they go to a GPU is chosen first."""
    choose_step_form(model, dtype)
    with PrefixCache(model.caches(REPLAY_CELLS, dtype, warm_up=False), host_bytes=0) as cache:
        for rows in STEP_ROWS:
            model(cache.batch([cache.begin([0], publish=False) for _ in range(rows)]))


def _rest(model: Warmed) -> None:
    """The kernels behind the layers, but for the head itself: its product is one of theirs."""
    ops.embedding(model.embed(np.zeros(2, np.int32)), np.zeros(1, np.int32))
    logits = model.finish(tensor(np.zeros((1, model.config.vocab_size), np.float32), device=model.device))
    ops.argmax(logits)
    ops.sample(logits, 1.0, 0, 1.0, 0)
