"""Stands before a decoder's ``forward``: a pass that is given a Past goes through it, any other as before.

An attribute of the module, as accelerate does it, and an object of its own, so that a deep copy of the model has one
that belongs to the copy.
"""

from __future__ import annotations

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from transformers.utils import ModelOutput

from .inputs import Inputs

_installing = threading.Lock()


class Passes(ABC):
    """A cache whose passes of the decoder go through it."""

    @abstractmethod
    def forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        """One pass of the decoder over ``inputs``; ``call.original`` computes."""


class Forward:
    """Called in place of ``module.forward``. ``users``: caches that are open on the module."""

    def __init__(self, module: torch.nn.Module, earlier: Callable[..., object] | None) -> None:
        self.module = module
        self.earlier = earlier
        self.users = 1
        self.__signature__ = inspect.signature(type(module).forward).replace(
            parameters=list(inspect.signature(type(module).forward).parameters.values())[1:]
        )

    def original(self, arguments: dict[str, object]) -> object:
        if self.earlier is not None:
            return self.earlier(**arguments)
        return type(self.module).forward(self.module, **arguments)

    def __call__(self, *args: object, **kwargs: object) -> object:
        past = next((value for value in (*args, *kwargs.values()) if isinstance(value, Passes)), None)
        if past is None:
            if self.earlier is not None:
                return self.earlier(*args, **kwargs)
            return type(self.module).forward(self.module, *args, **kwargs)
        names = list(self.__signature__.parameters)
        return past.forward(self, Inputs({**dict(zip(names, args)), **kwargs}))


def install(module: torch.nn.Module) -> None:
    """Once for each cache on the module."""
    with _installing:
        found = module.__dict__.get("forward")
        if isinstance(found, Forward) and found.module is module:
            found.users += 1
        else:
            module.__dict__["forward"] = Forward(module, found)


def remove(module: torch.nn.Module) -> None:
    """Once for each :func:`install`; what stood there before the first comes back with the last."""
    with _installing:
        found = module.__dict__.get("forward")
        if not isinstance(found, Forward) or found.module is not module:
            return
        found.users -= 1
        if found.users == 0:
            if found.earlier is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = found.earlier
