"""Objects that stand for something that goes on: a thread, a session, places in a step.

Concept. Python lets anybody copy and pickle an object, run its ``__init__`` again, leave that out, change its class, or
use it in a forked process. A value survives all of that: a copy is as good as the value. Of what goes on there is one,
and a second object that shares its parts would give wrong answers, so a class derived from :class:`Live` refuses:

    copy, deepcopy, pickle, another ``__class__``         ArgumentTypeError, unless a class says what a copy of it is
    ``__init__`` of an object that has run it             ArgumentTypeError, and the object goes on as it was
    use of one whose ``__init__`` did not run, or failed  ArgumentTypeError (``hasattr`` says that there is nothing)
    use in a forked process                               NotSupportedError; what ends an object does nothing there

The classes of the core do the same (python/bindings/base_class.h). Nothing of this costs anything in a call: what is
refused in a forked process is found there, once, among the objects that were made here.

Threads: any.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, SupportsIndex

from ._whole import Whole
from .errors import ArgumentTypeError, NotSupportedError

__all__ = ["Live"]

_ours: weakref.WeakSet[Live] = weakref.WeakSet()  # of this process, which makes them


class Live(Whole):
    """The base of what goes on."""

    def _begin(self) -> None:
        _ours.add(self)

    def __reduce__(self) -> NoReturn:
        raise ArgumentTypeError(
            f"[pickle] object: got {type(self).__name__}, allowed values, such as texts, tokens and arrays"
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        self.__reduce__()

    if not TYPE_CHECKING:  # which have a view of their own on it
        __class__ = property(type, lambda self, other: _refuse_class(self, other))


def _refuse_class(self: Live, other: object) -> NoReturn:
    raise ArgumentTypeError(
        f"[{type(self).__name__}] __class__: got {getattr(other, '__name__', other)}, allowed its own"
    )


# ---- in a forked process --------------------------------------------------------------------------------------------

_KNOWN = ("__class__", "__dict__", "__doc__", "__module__", "__reduce__")  # what Python itself asks of any object


class _Elsewhere:
    """In front of a class of whose objects this process has but copies. Its layout is that of any class of Python's, so
    that objects can change to an heir of it."""

    def __init_subclass__(cls) -> None:
        """Nothing of what classes of callers do for their heirs."""

    def __getattribute__(self, name: str) -> object:
        if name in _KNOWN:
            return super().__getattribute__(name)
        kind = type(self)
        method = callable(getattr(kind, name, None))
        if method and name in _ENDING:
            return _ENDING[name]
        refuse = functools.partial(_refuse_copy, kind.__name__)
        return refuse if method else refuse()

    def __enter__(self) -> _Elsewhere:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def __aenter__(self) -> _Elsewhere:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    def __del__(self) -> None:
        pass

    def __repr__(self) -> str:
        return f"<kvtrie.{type(self).__name__} of the process that this one was forked from>"

    __str__ = __repr__


def _refuse_copy(name: str, *_: object, **__: object) -> NoReturn:
    raise NotSupportedError(
        f"[{name}] this process was forked from the one that made the object, and has neither its threads nor its "
        "locks: make one here"
    )


def _nothing() -> None:
    pass


async def _nothing_async() -> None:
    pass


_ENDING: dict[str, Callable[[], object]] = {"cancel": _nothing, "close": _nothing, "aclose": _nothing_async}


_elsewhere: dict[type, type] = {}  # of each class the one of its copies


def _elsewhere_of(cls: type) -> type:
    if cls not in _elsewhere:
        members = {"__slots__": (), "__module__": cls.__module__}
        _elsewhere[cls] = type(cls)(cls.__name__, (_Elsewhere, cls), members)
    return _elsewhere[cls]


def _refuse_copies() -> None:
    """In the child. Takes no lock, and no memory but for classes."""
    change = vars(object)["__class__"].__set__
    for each in list(_ours):
        with suppress(Exception):  # of the metaclass of a caller's heir
            change(each, _elsewhere_of(type(each)))
    _ours.clear()


os.register_at_fork(after_in_child=_refuse_copies)
