"""Arguments as callers give them, checked in one place: flags, whole numbers, texts, callables and lists of things.

Errors name the public call (``where``), its argument (``name``), the value and what is allowed. What a value's own
methods raise is refused, too, with that as the cause; what is no ``Exception``, such as a KeyboardInterrupt, passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from .errors import ArgumentError, ArgumentTypeError, Error

if TYPE_CHECKING:
    from typing_extensions import TypeAlias

Item = TypeVar("Item")
CellFormats: TypeAlias = "str | tuple[str, str]"
"""How K and V are kept: a name, "K/V", or a pair of names."""

MOST_ITEMS = 1 << 26  # of a sequence that need not have them all in memory
MOST_LISTED = 1 << 20  # of a list that is read before anything else is known of it
_LARGEST = (1 << 63) - 1
_LONGEST = 60  # characters of a value in a message


def shown(value: object) -> str:
    """ "'text' (str)" for messages: one short line, whatever the value does when it is asked for it."""
    try:
        text = repr(value)
    except Exception:
        text = "a value"
    line = text.split("\n", 1)[0][:_LONGEST]
    safe = line.encode("utf-8", "backslashreplace").decode()
    return f"{safe}{'...' if len(line) < len(text) else ''} ({type(value).__name__})"


def refusal(value: object, where: str, name: str, allowed: str) -> ArgumentTypeError:
    return ArgumentTypeError(f"[{where}] {name}: got {shown(value)}, allowed {allowed}")


def beyond_memory(value: object, where: str, name: str) -> ArgumentError:
    return ArgumentError(f"[{where}] {name}: got {shown(value)}, allowed what fits into memory")


@contextmanager
def converting(value: object, where: str, name: str, allowed: str) -> Iterator[None]:
    """Around what asks ``value`` for something: whatever it raises instead is a refusal."""
    try:
        yield
    except Error:
        raise
    except MemoryError as error:
        raise beyond_memory(value, where, name) from error
    except Exception as error:
        said = f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").decode()
        raise ArgumentTypeError(f"[{where}] {name}: got {shown(value)}, allowed {allowed}: {said}") from error


def flag(value: object, where: str, name: str) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise refusal(value, where, name, "True or False")
    return bool(value)


def whole(value: object, where: str, name: str, least: int, most: int | None = None) -> int:
    if not isinstance(value, (int, np.integer)) or isinstance(value, (bool, np.timedelta64)):
        raise refusal(value, where, name, "an integer")
    if value < least or value > (_LARGEST if most is None else most):
        allowed = f"at least {least}" if most is None else f"{least} to {most}"
        got = value if abs(int(value)) <= _LARGEST else "an integer beyond 64 bits"
        raise ArgumentError(f"[{where}] {name}: got {got}, allowed {allowed}")
    return int(value)


def text(value: object, where: str, name: str) -> str:
    """A str that can be written as UTF-8."""
    if not isinstance(value, str):
        raise refusal(value, where, name, "a str")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise ArgumentError(
            f"[{where}] {name}: got a str with lone surrogates, allowed text that can be written as UTF-8"
        )
    return value


def cell_formats(value: object, where: str, name: str) -> str:
    """How K and V are kept, as one text: a name, or "K/V" of a pair of names. Which names there are, caches know."""
    if not isinstance(value, (tuple, list)):
        return text(value, where, name)
    if len(value) != 2:
        raise ArgumentError(f"[{where}] {name}: got {len(value)} formats, allowed one, or two for K and V")
    return "/".join(text(each, where, name) for each in value)


def optional_callable(value: object, where: str, name: str, allowed: str) -> None:
    """Raises for what is neither None nor can be called. ``allowed``: "a callable that ...", without the None."""
    if value is not None and not callable(value):
        raise refusal(value, where, name, f"{allowed}, or None")


def text_of(decode: Callable[[list[int]], str], ids: list[int], where: str) -> str:
    """The text that ``decode`` makes of token ids: a str, or it is refused. Errors of ``decode`` pass."""
    made: object = decode(ids)
    if not isinstance(made, str):
        raise refusal(made, where, "decode()", "a str")
    return made


def listed(value: Iterable[object], where: str, name: str, allowed: str) -> list[object]:
    """The items of any iterable but a text, ``MOST_LISTED`` at most."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise refusal(value, where, name, allowed)
    with converting(value, where, name, allowed):
        items = list(islice(iter(value), MOST_LISTED + 1))  # list() alone trusts the length that it is told
    if len(items) > MOST_LISTED:
        raise ArgumentError(f"[{where}] {name}: got more than {MOST_LISTED} items, allowed these")
    return items


def progress_of(value: object, where: str) -> None:
    """Raises for what is no bool, None or callable."""
    if value is not None and not isinstance(value, bool) and not callable(value):
        raise refusal(value, where, "progress", "True, a callable (done, total), or None")


def each_of(value: Iterable[Item], kind: type[Item], where: str, name: str, allowed: str) -> Iterator[Item]:
    """The items of any iterable one after the other, each of which has to be a ``kind``."""
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        raise refusal(value, where, name, allowed)
    with converting(value, where, name, allowed):
        items = iter(value)
    return _checked(items, kind, where, name, allowed)


def _checked(items: Iterator[Item], kind: type[Item], where: str, name: str, allowed: str) -> Iterator[Item]:
    for each in items:
        if not isinstance(each, kind):
            raise refusal(each, where, name, allowed)
        yield each
