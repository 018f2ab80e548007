"""Links of Markdown pages: which there are, what they lead to, and how they read from elsewhere.

A path is relative to the root of the repository, with slashes: "docs/design.md". Nothing here needs mkdocs.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^ *(```|~~~)")
_CODE = re.compile(r"(`+).*?\1")
_LINK = re.compile(r"(?<=\]\()([^)\s]+)(?=[^)\n]*\))")
_HEADING = re.compile(r"^#{1,6} +(.*?)(?: +#+)?$")
_INDENTED = re.compile(r"^(?: {4}|\t)")


class Target(NamedTuple):
    path: str  # of the repository; the page's own for a link that is an anchor alone
    anchor: str  # without "#"; empty if there is none


def prose_lines(text: str) -> Iterator[tuple[bool, str]]:
    """Each line, with whether it is prose: neither in a fence nor in an indented block."""
    fenced, blank, indented = False, True, False
    for line in text.split("\n"):
        fence = bool(_FENCE.match(line))
        indented = not fenced and bool(_INDENTED.match(line)) and (blank or indented)
        yield not (fenced or fence or indented), line
        fenced ^= fence
        blank = not line.strip()


def replace_links(text: str, change: Callable[[str], str]) -> str:
    """The text with every link's target changed; code is left as it is."""

    def outside_code(line: str) -> str:
        kept = [(match.start(), match.end()) for match in _CODE.finditer(line)]
        return _LINK.sub(
            lambda link: link[0] if any(begin <= link.start() < end for begin, end in kept) else change(link[0]), line
        )

    return "\n".join(outside_code(line) if prose else line for prose, line in prose_lines(text))


def links(text: str) -> list[str]:
    found: list[str] = []
    replace_links(text, lambda target: found.append(target) or target)  # type: ignore[func-returns-value]
    return found


def is_elsewhere(link: str) -> bool:
    return bool(re.match(r"[a-z][a-z0-9+.-]*:|//", link))


def resolve(page: str, link: str) -> Target:
    """The target of a page's relative link."""
    path, _, anchor = link.partition("#")
    return Target(posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page, anchor)


def slug(heading: str, separator: str = "-") -> str:
    """The anchor of a heading, as forges make it: lower case, no punctuation, spaces to hyphens."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]*>", "", plain).lower()).strip().replace(" ", separator)


def _free(name: str, taken: set[str]) -> str:
    numbered = (f"{name}-{count}" for count in itertools.count(1))
    return next(each for each in itertools.chain([name], numbered) if each not in taken)


def anchors(text: str) -> set[str]:
    found: set[str] = set()
    for prose, line in prose_lines(text):
        heading = _HEADING.match(line) if prose else None
        if heading:
            found.add(_free(slug(heading[1]), found))
    return found
