"""The text the tiny model learns from: manuals that Debian packages carry, as plain prose.

Three packages of Debian 12 hold coherent English under permissive terms: `sqlite3-doc` (public domain),
`postgresql-doc-15` (PostgreSQL licence) and `python3.11-doc` (PSF licence 2). Each HTML page becomes a `Page`:
sections of one heading and its paragraphs. Listings, tables, navigation and indexes are left out. A page is then
written in two forms, as running text and as a conversation whose questions are its headings, so that the model knows
the chat markers. One page in 25 (by a hash of its name) is held out of training, and so is the page of the prompt.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

DOCUMENTS = Path("/usr/share/doc")
PACKAGES = ("sqlite3-doc", "postgresql-doc-15", "python3.11-doc")
FOLDERS = {
    "sqlite": (DOCUMENTS / "sqlite3", r"releaselog|hlr\d|matrix|toc_|keyword_index|doclist|sitemap|changes\.html|news"),
    "postgresql": (DOCUMENTS / "postgresql-doc-15" / "html", r"release-|bookindex|features-sql|biblio|sql-keywords"),
    "python": (DOCUMENTS / "python3.11" / "html", r"genindex|changelog|search|contents|download|_static|py-modindex"),
}
BOS, END, SYSTEM, USER, ASSISTANT = "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = (BOS, END, SYSTEM, USER, ASSISTANT)
BOS_ID, END_ID = 0, 1
PROMPT_PAGE = "sqlite/whentouse.html"
QUESTIONS = (
    "{}",
    "{}?",
    "Tell me about {}.",
    "What does the manual say about {}?",
    "Please explain: {}.",
    "What about {}?",
)

_BLOCKS = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "h6"}
_HEADINGS = {"h1", "h2", "h3", "h4", "h5", "h6"}
_SKIPPED = {"pre", "table", "script", "style", "nav", "head", "svg", "form", "footer", "button"}
_SKIPPED_CLASSES = re.compile(r"sphinxsidebar|related|highlight|navheader|navfooter|toc|menu|codeblock|footer")
_ASIDES = {"Note", "Tip", "Caution", "Warning", "Important", ""}
_COMMON_HEADINGS = re.compile(
    r"(Descriptions?|Examples?|Parameters|Notes|Overview|Compatibility|Introduction|Options|Environment|Arguments|Functions|"
    r"Exceptions|Limitations|Usage|Summary|Diagnostics|Constants|Outputs|Return Value|Syntax)$"
)
_VOID = {"br", "img", "hr", "meta", "link", "input", "col", "wbr", "area", "base", "source"}
_TYPOGRAPHY = str.maketrans(
    {
        "\u2018": "'",
        "\u2019": "'",
        "\u201c": '"',
        "\u201d": '"',
        "\u2013": "-",
        "\u2014": " - ",
        "\u00a0": " ",
        "\u00b6": "",
        "\u2026": "...",
        "\u2212": "-",
        "\u00ad": "",
    }
)


@dataclass
class Section:
    """A heading and the paragraphs below it."""

    heading: str
    paragraphs: list[str] = field(default_factory=list)


@dataclass
class Page:
    """One manual page: its name ("sqlite/lang.html") and its sections in order."""

    name: str
    sections: list[Section]

    @property
    def held_out(self) -> bool:
        """Whether the page is kept out of training (the prompt's page, and one in 25 by a hash of its name)."""
        return self.name == PROMPT_PAGE or int(hashlib.sha256(self.name.encode()).hexdigest(), 16) % 25 == 0


class _PageParser(HTMLParser):
    """Collects (is_heading, text) blocks; text inside listings, tables and navigation is dropped."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.blocks: list[tuple[bool, str]] = []
        self._skip_stack: list[str] = []
        self._text: list[str] = []
        self._heading = False

    def _flush(self) -> None:
        text = re.sub(r"\s+", " ", "".join(self._text).translate(_TYPOGRAPHY)).strip()
        if text:
            self.blocks.append((self._heading, text))
        self._text.clear()
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _VOID:
            self._text.append(" ")
            return
        classes = dict(attrs).get("class") or ""
        if self._skip_stack:
            if tag == self._skip_stack[0]:
                self._skip_stack.append(tag)
        elif tag in _SKIPPED or (tag in {"div", "ul", "dl", "span", "p"} and _SKIPPED_CLASSES.search(classes)):
            self._skip_stack.append(tag)
        elif tag in _BLOCKS or tag == "div":
            self._flush()
            self._heading = tag in _HEADINGS

    def handle_endtag(self, tag: str) -> None:
        if self._skip_stack:
            if tag == self._skip_stack[0]:
                self._skip_stack.pop()
        elif tag in _BLOCKS or tag == "div":
            self._flush()

    def handle_data(self, data: str) -> None:
        if not self._skip_stack:
            self._text.append(data)


def _is_prose(text: str) -> bool:
    """Whether a block reads as sentences: long, mostly lower-case letters and spaces, ending as a sentence does."""
    plain = sum(c.islower() or c == " " for c in text)
    return len(text) >= 50 and plain >= 0.8 * len(text) and text.isascii() and text[-1] in ".:;)?!"


def _clean_heading(text: str) -> str:
    return re.sub(r"^(Chapter|Appendix|Part)?\s*([0-9A-Z]+\.)+(\d+\.?)*\s*", "", text).strip(" #:.")


def parse_page(name: str, html: str) -> Page:
    """Turn one HTML page into sections of prose; sections without prose disappear."""
    parser = _PageParser()
    parser.feed(html)
    sections = [Section("")]
    for is_heading, text in parser.blocks:
        if is_heading:
            if _clean_heading(text) not in _ASIDES:
                sections.append(Section(_clean_heading(text)))
        elif text.startswith("See also lists of"):
            continue
        elif _is_prose(text) and text not in sections[-1].paragraphs:
            sections[-1].paragraphs.append(text)
    return Page(name, [s for s in sections if s.paragraphs])


def load_pages() -> list[Page]:
    """Read every page of the installed packages in a fixed order; raise with the apt command where one is missing."""
    pages: list[Page] = []
    for source, (folder, unwanted) in FOLDERS.items():
        files = sorted(folder.rglob("*.html")) if folder.is_dir() else []
        if not files:
            packages = " ".join(PACKAGES)
            raise FileNotFoundError(f"no pages below {folder}: run `apt install --no-install-recommends {packages}`")
        for file in files:
            name = f"{source}/{file.relative_to(folder)}"
            if file.is_file() and not file.is_symlink() and not re.search(unwanted, name):
                page = parse_page(name, file.read_text(encoding="utf-8", errors="replace"))
                if sum(len(p) for s in page.sections for p in s.paragraphs) >= 300:
                    pages.append(page)
    return pages


def as_text(page: Page) -> str:
    """The page as running text: headings on their own lines, paragraphs apart by an empty line."""
    parts = [part for s in page.sections for part in ([s.heading] if s.heading else []) + s.paragraphs]
    return BOS + "\n\n".join(parts) + END


def as_conversation(page: Page, rng: random.Random) -> str:
    """The page as a conversation: its first section is the system prompt, later headings are asked for in turn."""
    first, rest = page.sections[0], page.sections[1:]
    turns = [BOS, SYSTEM, "\n\n".join(first.paragraphs), END]
    for section in rest or [first]:
        heading = section.heading or "this page"
        if first.heading and _COMMON_HEADINGS.match(heading):
            heading = f"the {heading.lower()} of {first.heading}"
        question = rng.choice(QUESTIONS).format(heading)
        turns += [USER, question, END, ASSISTANT, "\n\n".join(section.paragraphs), END]
    return "".join(turns)


def training_texts(pages: list[Page], seed: int) -> Iterator[str]:
    """Both forms of every page that is not held out, in an order fixed by `seed`."""
    rng = random.Random(seed)
    texts = [text for page in pages if not page.held_out for text in (as_text(page), as_conversation(page, rng))]
    rng.shuffle(texts)
    return iter(texts)
