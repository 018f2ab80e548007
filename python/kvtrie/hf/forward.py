"""Stands before ``forward`` of a decoder and of its head: a call that is given a Past goes through it.

Any other call runs as before. The decoder's passes are the Past's; of the head it is told what a call asks of its rows,
which the decoder does not see: labels, and the rows whose logits are wanted. It is an attribute of the module, as
accelerate does it, and an object of its own, so that a deep copy of the model has one that belongs to the copy.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from transformers import cache_utils as hf
from transformers.utils import ModelOutput

from .._locks import Lock
from ..errors import NotSupported
from .inputs import Asked, Inputs, asked_of

_installing = Lock()


class Passes(ABC):
    """A cache whose passes of the decoder go through it. ``asked``: by the call of the head that is under way."""

    asked: Asked = Asked()

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

    def original(self, *args: object, **kwargs: object) -> object:
        if self.earlier is not None:
            return self.earlier(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: object, **kwargs: object) -> object:
        past = next((value for value in (*args, *kwargs.values()) if isinstance(value, Passes)), None)
        return self.original(*args, **kwargs) if past is None else self.through(past, args, kwargs)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def through(self, past: Passes, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Not traced: torch.compile would make code of the looking up, too."""
        return past.forward(self, Inputs(self.named(args, kwargs)))

    def named(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, object]:
        return {**dict(zip(self.__signature__.parameters, args)), **kwargs}


class Head(Forward):
    """The same for the model around a decoder."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def through(self, past: Passes, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        if any(isinstance(value, hf.Cache) and value is not past for value in (*args, *kwargs.values())):
            raise NotSupported("[hf] forward: got a session and another cache (prefix tuning brings one), allowed one")
        past.asked = asked_of(self.named(args, kwargs))
        try:
            return self.original(*args, **kwargs)
        finally:
            past.asked = Asked()


def install(module: torch.nn.Module, kind: type[Forward] = Forward) -> None:
    """Once for each cache on the module."""
    with _installing:
        found = module.__dict__.get("forward")
        if isinstance(found, Forward) and found.module is module:
            found.users += 1
        else:
            module.__dict__["forward"] = kind(module, found)


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
