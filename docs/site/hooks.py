"""Hooks of mkdocs for the site: pages for linked files outside docs/, and the lists of headers."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from site_links import is_elsewhere, links, replace_links, resolve
from site_sources import first_sentence, page_of

_log = logging.getLogger("mkdocs.plugins.kvtrie")
_HEADERS = re.compile(r"^<!-- headers: ([\w/]+) -->$", flags=re.M)
_COPIES = "source/"
_WIDE = ("compared.md", "concepts.md", "promises.md", "testing.md")  # tables that need the room of both side bars
_OF_SOURCES = (
    "---\nhide: [navigation, toc]\nsearch:\n  boost: 0.3\n---\n\n"  # lines are long, and guides are found first
)


def _root(config: MkDocsConfig) -> Path:
    return Path(config.docs_dir).parent


def _repository_path(src_uri: str) -> str:
    return src_uri[len(_COPIES) : -len(".md")] if src_uri.startswith(_COPIES) else f"docs/{src_uri}"


def _site_path(root: Path, path: str) -> str:
    return path[len("docs/") :] if _is_page(root, path) else f"{_COPIES}{path}.md"


def _is_page(root: Path, path: str) -> bool:
    """Whether the site has it without our help: all files of docs/, no folders."""
    return path.startswith("docs/") and not (root / path).is_dir()


def _headers(root: Path, text: str) -> list[str]:
    folders: list[str] = _HEADERS.findall(text)
    return [path.relative_to(root).as_posix() for folder in folders for path in sorted((root / folder).glob("*.h"))]


def _wanted(root: Path, pages: Iterable[str]) -> dict[str, str]:
    """Files outside docs/ that pages lead to, over any number of links, and their pages."""
    found: dict[str, str] = {}
    to_read = [(page, (root / page).read_text(encoding="utf-8")) for page in pages]
    while to_read:
        page, text = to_read.pop()
        targets = [resolve(page, link).path for link in links(text) if not is_elsewhere(link)]
        for path in [*targets, *_headers(root, text)]:
            if _is_page(root, path) or path in found:
                continue
            if path.startswith("..") or not (root / path).exists():
                _log.warning("%s: a link leads to %s, which is not there", page, path)
                continue
            found[path] = page_of(root, path)
            if path.endswith(".md"):
                to_read.append((path, found[path]))
    return found


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = _root(config)
    pages = [_repository_path(file.src_uri) for file in files.documentation_pages()]
    for path, text in sorted(_wanted(root, pages).items()):
        head = "" if path.endswith(".md") else _OF_SOURCES
        inclusion = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, _site_path(root, path), content=head + text, inclusion=inclusion))
    return files


def _list_of_headers(root: Path, folder: str) -> str:
    rows = ["| header | what it is |", "|---|---|"]
    for path in sorted((root / folder).glob("*.h")):
        link = posixpath.relpath(path.relative_to(root).as_posix(), "docs/reference")
        rows.append(f"| [`{path.name}`]({link}) | {first_sentence(path.read_text(encoding='utf-8'))} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: object) -> Optional[str]:
    if page.file.src_uri in _WIDE:
        page.meta["hide"] = ["navigation", "toc"]
    own, root = page.file.src_uri, _root(config)
    origin = _repository_path(own)

    def change(link: str) -> str:
        if is_elsewhere(link):
            return link
        target = resolve(origin, link)
        path = (
            ""
            if target.path == origin
            else posixpath.relpath(_site_path(root, target.path), posixpath.dirname(own) or ".")
        )
        return path + (f"#{target.anchor}" if target.anchor else "")

    markdown = _HEADERS.sub(lambda match: _list_of_headers(root, match[1]), markdown)
    return replace_links(markdown, change)


def on_post_build(config: MkDocsConfig) -> None:
    """The index of the search as a script, which a page opened as a file asks for before it hides the search."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    if index.is_file():
        index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")
