"""SmolLM2-135M-Instruct, one GGUF file that ``python -m kvtrie download`` gets, and a text to read to it."""

from __future__ import annotations

from pathlib import Path

from kvtrie.models import default
from kvtrie.quality import shipped_text


def path() -> Path:
    """The file. Raises ``FileNotFoundError`` where nobody has downloaded it."""
    found = default.found()
    if found is None:
        raise FileNotFoundError("[bench] SmolLM2: got no file, allowed one: `python -m kvtrie download` gets it")
    return found


def text() -> str:
    """English with code and tables, 8,860 of its tokens: kvtrie's docs as they were once, so that figures stay."""
    return shipped_text()
