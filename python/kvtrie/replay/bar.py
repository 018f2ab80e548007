"""A progress bar on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

from ..errors import NotSupportedError


@contextmanager
def bar() -> Iterator[Callable[[int, Optional[int]], None]]:
    """The function that takes (requests done, total or None) and shows it; ``NotSupportedError`` without tqdm."""
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise NotSupportedError("[simulate] progress: a bar needs tqdm: pip install tqdm") from error
    shown: Any = None

    def show(done: int, total: Optional[int]) -> None:
        nonlocal shown
        if shown is None:
            shown = tqdm(total=total, unit="req", desc="replay", leave=False)
        shown.update(done - shown.n)

    try:
        yield show
    finally:
        if shown is not None:
            shown.close()
