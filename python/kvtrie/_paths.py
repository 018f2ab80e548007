"""Paths as callers give them."""

from __future__ import annotations

import os

from .errors import ArgumentError, ArgumentTypeError


def path_text(path: object, where: str, name: str = "path") -> str:
    """``path`` as text. ``ArgumentTypeError`` for what is no path, ``ArgumentError`` for one that no file can have."""
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    if not isinstance(text, str):
        raise ArgumentTypeError(f"[{where}] {name}: got {type(path).__name__}, allowed a str or a path")
    if "\0" in text:
        raise ArgumentError(f"[{where}] {name}: got a name with a NUL in it, allowed one without")
    return text
