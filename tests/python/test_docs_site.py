"""The pages of docs/: each has its place on the site, every link leads somewhere, and the reference leaves nothing out.

The site itself is built by `./dev docs`, strictly. What is held here needs none of its packages.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from functools import reduce
from pathlib import Path
from xml.etree import ElementTree

import pytest

import kvtrie as kv

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "site"))
import pictures  # noqa: E402
import site_docstrings  # noqa: E402
import site_links  # noqa: E402
import site_sources  # noqa: E402

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
REFERENCE = sorted((DOCS / "reference").glob("*.md"))
HEADERS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "csrc").rglob("*.h"))
CONFIGURATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def directives() -> list[str]:
    """What the reference names; a function that hides the module it comes from goes by both their names."""
    found = [name for page in REFERENCE for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.M)]
    return [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in found]


# --- pages and links --------------------------------------------------------------------------------------------------


def test_every_page_has_one_place_in_the_navigation() -> None:
    named = re.findall(r"^ +- .+: (\S+\.md)$|^  - .+: (\S+\.md)$", CONFIGURATION.split("\nnav:\n")[1], flags=re.M)
    expected = [page[len("docs/") :] for page in PAGES if page.startswith("docs/")]
    assert sorted(first or second for first, second in named) == expected


def faults(page: str, text: str) -> list[str]:
    found = []
    for link in site_links.links(text):
        if site_links.is_elsewhere(link):
            continue
        path, anchor = site_links.resolve(page, link)
        if not (ROOT / path).exists():
            found.append(f"{link}: no such file")
        elif anchor and path.endswith(".md") and anchor not in site_links.anchors(text_of(path)):
            found.append(f"{link}: no such heading")
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_and_anchors_lead_somewhere(page: str) -> None:
    assert faults(page, text_of(page)) == []


def test_broken_links_are_found() -> None:
    code = "`[c](no)`\n\n    [d](no)\n\n```\n[e](no)\n```\n"
    text = f"# A\n\n[x](none) [y](#a) [w](../README.md#models) [z](#b) {code}![f](design.md#none)"
    assert faults("docs/glossary.md", text.replace("#a", "#glossary")) == [
        "none: no such file",
        "#b: no such heading",
        "design.md#none: no such heading",
    ]


def test_anchors_are_those_of_forges() -> None:
    text = "# A `b.c`: d, e?\n## [Link](x) here\n```\n# no\n```\n## Twice\n## Twice\n"
    assert site_links.anchors(text) == {"a-bc-d-e", "link-here", "twice", "twice-1"}
    assert site_links.slug("Kinds of state", "-") == "kinds-of-state"


def test_links_are_changed_outside_code_only() -> None:
    text = "[a](x) and `[b](x)` and ![c](x)\n```\n[d](x)\n```"
    assert site_links.replace_links(text, lambda link: link + "y") == text.replace("[a](x)", "[a](xy)").replace(
        "[c](x)", "[c](xy)"
    )


def test_the_site_fetches_nothing() -> None:
    assert re.search(r"^  font: false$", CONFIGURATION, flags=re.M)
    for path in (CONFIGURATION, text_of("docs/site/style.css")):
        assert "http" not in path and "//" not in re.sub(r"/\*.*?\*/", "", path, flags=re.S)


# --- the reference ----------------------------------------------------------------------------------------------------


def test_every_public_name_is_in_the_reference() -> None:
    written = Counter(directives())
    assert [name for name, count in written.items() if count > 1] == []
    assert sorted(f"kvtrie.{name}" for name in kv.__all__ if name != "__version__") == sorted(
        name for name in written if name.split(".")[1] in kv.__all__
    )


@pytest.mark.parametrize("name", directives())
def test_what_the_reference_names_is_there(name: str) -> None:
    if name == "kvtrie.scale":  # a module that nothing imports by itself
        assert (ROOT / "python/kvtrie/scale/__init__.py").exists()
    else:
        assert reduce(getattr, name.split(".")[1:], kv) is not None


def test_docstrings_become_lists_of_parameters_and_lose_no_word() -> None:
    text = "A sum.\n\n``a``: one. ``b``, ``c`` [n]: two; ``x``: no parameter.\nRaises ``E``.\n\n    a drawing"
    listed = site_docstrings.as_list(text, {"a", "b", "c"})
    assert "\n- ``a``: one.\n- ``b``, ``c`` [n]: two; ``x``: no parameter.\n\nRaises ``E``.\n\n    a drawing" in listed
    assert [word for word in listed.split() if word != "-"] == text.split()
    assert site_docstrings.as_list("``a``: one.", {"a"}) == "``a``: one."
    assert (
        site_docstrings.plain("of :class:`kvtrie.Node` and :func:`~kvtrie.media`")
        == "of ``kvtrie.Node`` and ``kvtrie.media``"
    )
    assert site_docstrings.described("f(a: int) -> None\n\nWhat it does (well).") == "What it does (well)."
    assert site_docstrings.described("What it is (well).") == "What it is (well)."


# --- headers ----------------------------------------------------------------------------------------------------------


def test_every_folder_of_headers_is_listed() -> None:
    listed = re.findall(r"^<!-- headers: (\S+) -->$", text_of("docs/reference/cpp.md"), flags=re.M)
    assert sorted(listed) == sorted({str(Path(header).parent) for header in HEADERS})


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_becomes_prose_and_code(header: str) -> None:
    text, page = text_of(header), site_sources.page_of(ROOT, header)
    code = re.findall(r"^(```+)cpp\n(.*?)\n\1$", page, flags=re.M | re.S)
    assert len(code) == 1 and code[0][1] in text and code[0][1].startswith(("#include", "namespace", "#"))
    assert site_sources.first_sentence(text) and not site_sources.first_sentence(text).endswith((".", ":"))
    comment = [line[3:] for line in text.split("#pragma once")[0].split("\n")]
    words = re.sub(r"&lt;", "<", re.sub(r"&amp;", "&", re.sub(r"\\(.)", r"\1", page))).replace("**", "")
    for line in comment:
        assert line.strip() in words or line.strip() in page


def test_comments_keep_their_drawings_and_their_characters() -> None:
    comment = ["What it is.", "", "Concept. A *b* of c_d<e> | f.", "", "     a --> b", "", "     c", "Then."]
    assert site_sources.as_prose(comment) == (
        "What it is.\n\n**Concept.** A *b* of c\\_d&lt;e> \\| f.\n\n```text\n     a --> b\n\n     c\n```\n\nThen."
    )


# --- pictures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_what_their_program_draws(name: str) -> None:
    drawn = pictures.PICTURES[name]().svg()
    assert drawn == text_of(f"docs/images/{name}.svg")
    assert "prefers-color-scheme: dark" in drawn and f"images/{name}.svg" in text_of("docs/concepts.md")
    for shape in ElementTree.fromstring(drawn).iter():
        x, width = float(shape.get("x", 0)), shape.get("width", "0")
        assert 0 <= x <= 720 and (not width.replace(".", "").isdigit() or x + float(width) <= 720)
