"""Pages for what lies outside docs/: C++ headers, sources, notebooks and the texts at the root.

There is no address at which a reader of the site could look at the repository, so the site has a copy of each file that
a page links to. A header begins with what the thing is: that becomes prose, what it declares stays code.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

_LANGUAGES = {".h": "cpp", ".cpp": "cpp", ".cl": "c", ".clh": "c", ".py": "python", ".pyi": "python", ".json": "json"}


def page_of(root: Path, path: str) -> str:
    """The Markdown of a file's page."""
    file = root / path
    if file.is_dir():
        return _folder(file, path)
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        return text
    if file.suffix == ".h":
        return _header(path, text)
    if file.suffix == ".ipynb":
        return _notebook(path, text)
    return f"# `{path}`\n\n{_fenced(text, _LANGUAGES.get(file.suffix, 'text'))}"


def first_sentence(text: str) -> str:
    """A header's own description: its comment up to the first period or colon that ends a clause."""
    words = " ".join(_leading_comment(text)[0]).split("  ")[0]
    return escaped(re.split(r"(?<=[.:;])\s", words, maxsplit=1)[0].rstrip(".:;"))


def _folder(folder: Path, path: str) -> str:
    """The names in it; of a folder of docs/ each leads to its file, which the site has anyway."""
    names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir() if not each.name.startswith((".", "_")))
    linked = path.startswith("docs/")
    rows = [f"[`{name}`]({folder.name}/{name})" if linked and name[-1] != "/" else f"`{name}`" for name in names]
    return f"# `{path}/`\n\n" + "".join(f"- {row}\n" for row in rows)


def _fenced(text: str, language: str) -> str:
    marks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{marks}{language}\n{text.rstrip()}\n{marks}\n"


def _leading_comment(text: str) -> tuple[list[str], str]:
    """Lines of the comment that a header begins with, without their marks, and what follows it."""
    lines = text.split("\n")
    end = next((at for at, line in enumerate(lines) if not line.startswith("//")), len(lines))
    return [line[3:] for line in lines[:end]], "\n".join(lines[end:])


def _header(path: str, text: str) -> str:
    comment, code = _leading_comment(text)
    code = code.replace("#pragma once\n", "", 1).strip("\n")
    return f"# `{path}`\n\n{as_prose(comment)}\n\n{_fenced(code, 'cpp')}"


def as_prose(comment: list[str]) -> str:
    """A plain comment as Markdown: what is indented stays as it is drawn."""
    written: list[str] = []
    for drawn, group in groupby(_with_blanks(comment), key=lambda each: each[0]):
        lines = [line for _, line in group]
        if drawn:
            written += ["", _fenced("\n".join(lines), "text")]
            continue
        begins = [at > 0 and not lines[at - 1] for at in range(len(lines))]
        written += [escaped(_bold_heads(line) if first else line) for line, first in zip(lines, begins)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(written)).strip()


def _with_blanks(comment: list[str]) -> list[tuple[bool, str]]:
    """Each line with whether it belongs to a drawing; an empty one does where the next one that is not empty does."""
    drawn = False
    marked = []
    for line in reversed(comment):
        drawn = line.startswith("  ") if line.strip() else drawn
        marked.append((drawn, line))
    for at in range(len(marked) - 2, -1, -1):  # the empty lines above a drawing are not in it
        if marked[at][0] and not marked[at][1].strip() and not marked[at + 1][0]:
            marked[at] = (False, "")
    return marked[::-1]


def _bold_heads(line: str) -> str:
    """ "Threads: none" at the beginning of a paragraph, and "Concept. A tree": their first word is a title."""
    return re.sub(r"^([A-Z][a-z]+(?: [a-z]+){0,3})([.:])(?= |$)", "\1\\1\\2\1", line)


def escaped(text: str) -> str:
    """Plain text whose characters mean themselves in Markdown; \\1 stands for the marks of bold."""
    parts = re.split(r"(`[^`]*`)", text)
    for at in range(0, len(parts), 2):
        parts[at] = (
            re.sub(r"(\*\w[\w -]*\*)|([\\*_\[\]#|~])", _mark, parts[at]).replace("&", "&amp;").replace("<", "&lt;")
        )
    return "".join(parts).replace("\1", "**")


def _mark(match: re.Match[str]) -> str:
    return match[1] or f"\\{match[2]}"


def _notebook(path: str, text: str) -> str:
    """Cells of text and of code, and the pictures and texts that are stored with them."""
    written = [f"# `{path}`"]
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            written.append(re.sub(r"^(#+ )", r"#\1", source, flags=re.M))
        elif cell["cell_type"] == "code":
            written.append(_fenced(source, "python"))
            written += [shown for output in cell.get("outputs", []) if (shown := _output(output))]
    return "\n\n".join(written)


def _output(output: dict[str, object]) -> str:
    data = output.get("data")
    if not isinstance(data, dict):
        return _fenced("".join(output["text"]), "text") if "text" in output else ""  # type: ignore[call-overload]
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            return f"<div>{''.join(data[kind])}</div>"
    if "image/png" in data:
        return f'<img alt="" src="data:image/png;base64,{"".join(data["image/png"]).strip()}">'
    return _fenced("".join(data["text/plain"]), "text") if "text/plain" in data else ""
