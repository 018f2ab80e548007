"""The engine of each actor: a model, and a cache as it was asked for.

A model is a path or name as ``kv.models.load`` takes it, or a callable that makes one, or makes (model, cache).
Two caches cannot have one disk folder, so every actor takes the first of ``disk/0``, ``disk/1``, ... that nobody has:
an actor that is started again finds what was written before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TypedDict, Union, cast

from .._arguments import refusal
from .._protocols import StepModel
from ..errors import BusyError, NotSupportedError
from ..models import load
from ..models.base import Model
from ..prefix_cache import Bytes, PrefixCache

Made = Union[StepModel, tuple[StepModel, PrefixCache]]
ModelSource = Union[str, os.PathLike[str], Callable[[], Made]]


class EngineOptions(TypedDict, total=False):
    """Where the model computes and what its cache may hold, as keyword arguments.

    ``device``, ``dtype``: those of ``kv.models.load``. ``capacity``: tokens that the cache has on the device (8192);
    ``kv_dtype``: of K and V ("float16"). ``host_bytes``, ``disk``, ``disk_bytes``, ``store``, ``store_deadline``,
    ``policy``: those of ``kv.PrefixCache``; ``disk`` is a folder with a folder for each actor.
    """

    device: str | None
    dtype: str | None
    capacity: int
    kv_dtype: str
    host_bytes: Bytes
    disk: str | os.PathLike[str] | None
    disk_bytes: Bytes
    store: str | None
    store_deadline: float | None
    policy: str


@dataclass(frozen=True)
class Engine:
    """How to make both; goes to the actors."""

    model: ModelSource
    options: EngineOptions

    def open(self, mtp: bool = False) -> tuple[StepModel, PrefixCache]:
        """A new model and cache; ``mtp``: with its prediction head. REQUIRES: checked options."""
        if not callable(self.model):
            model = load(self.model, self.options.get("device"), self.options.get("dtype"), mtp=mtp)
            return model, self._cache(model)
        made = self.model()
        if isinstance(made, tuple):
            return made
        return made, self._cache(cast(Model, made))

    def _cache(self, model: Model) -> PrefixCache:
        names = ("host_bytes", "disk_bytes", "store", "store_deadline", "policy")
        options = {name: value for name, value in self.options.items() if name in names}
        caches = model.caches(
            capacity=self.options.get("capacity", 8192), dtype=self.options.get("kv_dtype", "float16")
        )
        disk = self.options.get("disk")
        if disk is None:
            return PrefixCache(caches, fingerprint=model.fingerprint, **options)  # type: ignore[arg-type]
        Path(disk).mkdir(mode=0o700, parents=True, exist_ok=True)
        for number in count():
            try:
                return PrefixCache(caches, fingerprint=model.fingerprint, disk=Path(disk, str(number)), **options)  # type: ignore[arg-type]
            except BusyError:  # another actor has it
                continue
        raise AssertionError


def checked_engine(model: object, options: Mapping[str, object], where: str) -> Engine:
    """Raises for a model that is none. The options are checked by what takes them, in the actors."""
    if not isinstance(model, (str, os.PathLike)) and not callable(model):
        raise refusal(model, where, "model", "a path, a name, or a callable that makes a model")
    if callable(getattr(model, "caches", None)):
        raise refusal(model, where, "model", "a path, a name, or a callable that makes one: each actor has its own")
    return Engine(cast(ModelSource, model), cast(EngineOptions, dict(options)))


def ray_data() -> ModuleType:
    """The library, imported when it is first used. Raises ``kv.errors.NotSupportedError`` saying what to install."""
    try:
        import pyarrow  # noqa: F401
        import ray.data
    except ImportError as error:
        missing = (error.name or "ray").partition(".")[0]
        raise NotSupportedError(f"[ray] needs {missing}: pip install 'kvtrie[ray]'") from error
    return cast(ModuleType, ray.data)
