"""A name for Ray's command line: ``serve run kvtrie.scale:app replicas=2``. All else is in ``kvtrie.ray.scale``.

Needs the extra ``kvtrie[ray]``; importing this does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ray.scale import app as app

__all__ = ["app"]

if not TYPE_CHECKING:  # to type checkers, a name that is not there is an error

    def __getattr__(name: str) -> object:
        if name != "app":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}: see kvtrie.ray.scale")
        from .ray import scale

        return scale.app
