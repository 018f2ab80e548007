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

from .._locks import make_lock
from ..errors import NotSupportedError
from .inputs import NOTHING, Asked, Inputs, asked_of

_installing = make_lock()  # a finalizer may remove in the middle of it


class Passes(ABC):
    """A cache whose passes of the decoder go through it. ``asked``: by the call of the head that is under way."""

    asked: Asked = NOTHING

    @abstractmethod
    def forward(self, call: Forward, inputs: Inputs) -> ModelOutput:
        """One pass of the decoder over ``inputs``; ``call.original`` computes."""

    @abstractmethod
    def settle(self, asked: Asked) -> None:
        """The call of the head that ``asked`` is over: its pass counts."""

    @abstractmethod
    def take_back(self, asked: Asked) -> None:
        """That call failed behind its pass, which does not count."""


class Forward:
    """Called in place of ``module.forward``. ``users``: an object for each cache that is open on the module."""

    def __init__(self, module: torch.nn.Module, earlier: Callable[..., object] | None) -> None:
        self.module = module
        self.earlier = earlier
        self.users: set[object] = set()
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
            raise NotSupportedError(
                "[hf] forward: got a session and another cache (prefix tuning brings one), allowed one"
            )
        asked = asked_of(self.named(args, kwargs))
        try:
            past.asked = asked
            output = self.original(*args, **kwargs)
            past.settle(asked)
            return output
        except BaseException:
            past.take_back(asked)
            raise
        finally:
            past.asked = NOTHING


def install(module: torch.nn.Module, user: object, kind: type[Forward] = Forward) -> None:
    """Called again for a user, it does nothing."""
    with _installing:
        while (found := _installed(module)) is None or user not in found.users:
            if found is None:
                found = module.__dict__["forward"] = kind(module, module.__dict__.get("forward"))
            found.users.add(user)


def remove(module: torch.nn.Module, user: object) -> None:
    """The earlier method comes back when the last user goes. Called again for one, it does nothing."""
    with _installing:
        found = _installed(module)
        if found is None:
            return
        found.users.discard(user)
        if found.users:
            return
        if found.earlier is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = found.earlier


def _installed(module: torch.nn.Module) -> Forward | None:
    """The method of the module itself: a deep copy has one of its own."""
    found = module.__dict__.get("forward")
    return found if isinstance(found, Forward) and found.module is module else None
