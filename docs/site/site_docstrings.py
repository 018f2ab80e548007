"""Docstrings as the reference shows them: no signature twice, and parameters as a list. Nothing here needs griffe."""

from __future__ import annotations

import re

# "``device``: ..." or "``a``, ``b``: ..." where a sentence begins.
_DESCRIBED = re.compile(r"(?:(?<=[.;] )|(?<=[.;]\n)|^)``\w+``(?:(?:,| and) ``\w+``)*(?: \[[^\]]*\])?:")
_NAMES = re.compile(r"``(\w+)``")


def described(text: str) -> str:
    """A docstring of pybind11 without the signature that it begins with."""
    first, _, rest = text.partition("\n")
    return rest.strip("\n") if first.split("(")[0].isidentifier() and "(" in first else text


def plain(text: str) -> str:
    """Roles of reStructuredText as what they name."""
    return re.sub(r":\w+:`~?([\w.]+)`", r"``\1``", text)


def as_list(text: str, parameters: set[str]) -> str:
    """The paragraph on several parameters as a list, with an item for each."""
    paragraphs = re.split(r"\n{2,}", text)
    for at, paragraph in enumerate(paragraphs):
        found = [
            match.start() for match in _DESCRIBED.finditer(paragraph) if set(_NAMES.findall(match[0])) <= parameters
        ]
        if len(found) < 2 or paragraph.startswith((" ", "-", "|")):
            continue
        pieces = [paragraph[begin:end].strip() for begin, end in zip([0, *found], [*found, len(paragraph)])]
        items = "\n".join("- " + piece.replace("\n", "\n    ") for piece in pieces[1:])
        items = re.sub(r"\.\s+Raises (?!.*\.\s+Raises )", ".\n\nRaises ", items, flags=re.S)
        paragraphs[at] = f"{pieces[0]}\n\n{items}".strip()
    return "\n\n".join(paragraphs)
