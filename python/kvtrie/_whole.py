"""Objects whose ``__init__`` did not run, or failed, say so; and one that ran does not run again.

Python makes an object before it initialises it, so that anybody can have one that is not whole: by ``X.__new__(X)``, by
a class that is derived from ours and forgets to call ``super().__init__()``, or by keeping ``self`` where ``__init__``
raised. What such an object lacks is refused by name. Running ``__init__`` of one that is in use would change it below
those who use it, so that is refused as well.

A class has a :class:`_Lacking` for each attribute that its ``__init__`` sets. Python asks it only where the object has
no such attribute of its own, so whole objects are as quick as ever, and an AttributeError in a property stays what it
is, which a ``__getattr__`` would hide.

Threads: any.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable
from types import CodeType
from typing import TYPE_CHECKING, NoReturn

from .errors import ArgumentTypeError

__all__ = ["Slotted", "Whole", "mark_lacking"]

_NEW, _UNDER_WAY, _MADE = range(3)  # how far __init__ is


class Unmade(ArgumentTypeError, AttributeError):
    """An attribute that an object lacks because its ``__init__`` did not run, or failed. To ``hasattr`` it is none."""


class _Lacking:
    """In a class, in place of an attribute that only its objects have."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, made: object, kind: type) -> NoReturn:
        if made is None:
            raise AttributeError(f"type object {kind.__name__!r} has no attribute {self.name!r}")
        raise Unmade(
            f"[{kind.__name__}] self: got an object whose __init__ did not run, or failed, allowed a whole one"
        )


def mark_lacking(kind: type, names: Iterable[str]) -> None:
    """Has objects of the class that lack one of these say so; for those without a slot and without a default."""
    for name in names:
        if not hasattr(kind, name) and name not in vars(kind):
            setattr(kind, name, _Lacking(name))


def _stored(code: CodeType) -> list[str]:
    return [str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_ATTR"]


def _made_once(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that refuses an object that is made. Constructors that it calls are parts of the same making."""

    @functools.wraps(init)
    def checked(self: Whole, *arguments: object, **named: object) -> None:
        if self._stage == _UNDER_WAY:
            return init(self, *arguments, **named)
        if self._stage == _MADE:
            raise ArgumentTypeError(
                f"[{type(self).__name__}.__init__] self: got an object whose __init__ ran already, allowed a new one"
            )
        self._stage = _UNDER_WAY
        self._begin()
        try:
            init(self, *arguments, **named)
        except BaseException:
            self._stage = _NEW
            raise
        self._stage = _MADE

    return checked


class Whole:
    """The base of classes with an ``__init__`` that is written out. ``_stage`` is its own."""

    _stage: int = _NEW

    def __init_subclass__(cls) -> None:
        """Of classes of this package only: what those of callers do in their ``__init__`` is theirs."""
        super().__init_subclass__()
        own: Callable[..., None] | None = vars(cls).get("__init__")
        if own is not None and cls.__module__.partition(".")[0] == __name__.partition(".")[0]:
            mark_lacking(cls, _stored(inspect.unwrap(own).__code__))
            cls.__init__ = _made_once(own)  # type: ignore[method-assign]

    def _begin(self) -> None:
        """At the beginning of ``__init__``."""


class Slotted:
    """The base of values whose attributes have slots, and which have no properties."""

    __slots__ = ()

    if not TYPE_CHECKING:  # to type checkers, a name that is not there is an error

        def __getattr__(self, name: str) -> NoReturn:
            _Lacking(name).__get__(self if name in type(self).__slots__ else None, type(self))
