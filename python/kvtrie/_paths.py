"""Paths as callers give them."""

from __future__ import annotations

import os

from ._arguments import converting, shown
from ._folders import expanded
from .errors import ArgumentError, ArgumentTypeError


def path_text(path: object, where: str, name: str = "path") -> str:
    """``path`` as text, with the home in place of a leading ``~``.

    ``ArgumentTypeError`` for what is no path, ``ArgumentError`` for one that no file can have, or without a home.
    """
    text: object = path
    if not isinstance(path, (str, bytes)) and hasattr(type(path), "__fspath__"):
        with converting(path, where, name, "a str or a path"):
            text = os.fspath(path)  # type: ignore[call-overload]
    if not isinstance(text, str):
        raise ArgumentTypeError(f"[{where}] {name}: got {type(path).__name__}, allowed a str or a path")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ArgumentError(f"[{where}] {name}: got {shown(path)}, allowed a name that a file can have") from error
    if "\0" in text:
        raise ArgumentError(f"[{where}] {name}: got a name with a NUL in it, allowed one without")
    whole = expanded(text)
    if whole is None:
        raise ArgumentError(f"[{where}] {name}: got {text!r} and no home, allowed an absolute path, or HOME")
    return whole
