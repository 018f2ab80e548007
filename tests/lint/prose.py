"""Warnings about texts, comments and names that no longer fit each other. `./dev lint` prints them; none is a failure.

    python3 tests/lint/prose.py               needs git and Python's standard library, and nothing that is built
    python3 tests/lint/prose.py --strict      sentences with a clause as subject alone: 1 if there are any

Without --strict always exits with 0, also where a check itself fails.
"""

from __future__ import annotations

import ast
import hashlib
import json
import posixpath
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

import renamed  # noqa: E402

Warnings = Iterator[tuple[str, int, str]]  # file, line (0: the whole of it), what is wrong there

CODE = (".h", ".cpp", ".cl", ".clh", ".py", ".pyi")
SOURCES = ("csrc/", "kernels/", "python/", "tests/cpp/", "tests/oracle/", "tests/python/")
OWN = "tests/lint/prose.py"
# Plain English that a reader stumbles over, and what says the same.
UNNATURAL = {"tell of": "report", "tells of": "reports", "says of": "says about", "wish": "request"}
# Names of other projects' files, of files that are made, and of no file in particular.
ELSEWHERE = {"CL/cl.h", "ggml/src/ggml-common.h", "llama.cpp", "build/drivers/table.md"}
ELSEWHERE |= {"bench/NAME.cpp", "layer/file.h", "name.cl", "name.clh", "_oracle.cpp", "rates.svg"}
NAME = re.compile(r"(?<![\w./*<{-])((?:[\w.-]+/)*[\w-]+\.(?:h|cpp|cl|clh|py|pyi|md|cmake|ipynb|svg))(?![\w(*])")
LONGEST = {"docs/": 330, "examples/five_agents.py": 80, "examples/own_model_torch.py": 120}  # lines
# What belongs to the machine on which a notebook ran: folders, objects' addresses.
TRACES = re.compile(r"/(?:home|root|tmp|work|usr|opt|var|Users)/|site-packages| at 0x[0-9a-f]+|\\u001b\[")


@cache
def files() -> list[str]:
    """All that git has or would add, but not what was measured."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    names = sorted(set(listed.stdout.splitlines()))
    return [name for name in names if "docs/results/" not in name and (ROOT / name).is_file()]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def those(*endings: str, under: tuple[str, ...] = ("",)) -> list[str]:
    return [name for name in files() if name.endswith(endings) and name.startswith(under)]


def line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


# ---- words -----------------------------------------------------------------------------------------------------------


def rows(name: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a page's tables, headings included: line and cells."""
    for number, line in enumerate(text_of(name).splitlines(), 1):
        if line.startswith("|") and not line.startswith("|---"):
            yield number, [cell.strip() for cell in line.strip().strip("|").split("|")]


def pattern(words: str) -> re.Pattern[str]:
    """All forms of some words, also in an identifier and over two lines of a comment: kGivesUp, "gives // up"."""
    forms = [rf"(?:{w}|{w.capitalize()}|{w.upper()})(?:s|es|ed|ing)?" for w in words.split()]
    between = r"(?:_|\s+(?:(?://+|#+|\*) *)?|(?<=[a-z])(?=[A-Z]))"
    return re.compile(rf"(?:(?<![A-Za-z0-9])|(?<=[a-z0-9])(?=[A-Z])){between.join(forms)}(?![a-z0-9])")


def ruled_out_words() -> Warnings:
    table = list(rows("docs/concepts.md"))[1:]
    instead = {word.strip(): row[0] for _, row in table for word in row[3].split(",") if word.strip()}
    instead.update(UNNATURAL)
    patterns = [(word.split()[0], pattern(word), better) for word, better in instead.items()]
    pages = [name for name in those(".md") if "/" not in name or name.startswith("docs/")]
    for name in [*pages, *those(*CODE, under=(*SOURCES, "examples/"))]:
        text = "" if name == "docs/concepts.md" else text_of(name)
        lower = text.lower()
        for first, forms, better in patterns:
            for found in forms.finditer(text) if first in lower else ():
                said = " ".join(found[0].split())
                yield name, line_of(text, found.start()), f"'{said}': the word for it is '{better}'"


def names_in_the_glossary() -> Warnings:
    everything = "\n".join(text_of(name) for name in those(*CODE, under=SOURCES))
    known = set(re.findall(r"\w+", everything))
    for line, row in list(rows("docs/concepts.md"))[1:]:
        for name in re.findall(r"`([^`]+)`", row[2]):
            there = (ROOT / name).exists() if "/" in name else re.split(r"::|\.", name)[-1] in known
            if not there:
                yield "docs/concepts.md", line, f"{name} is not in the code"


# A sentence whose subject is a clause: the reader has to find out what it is about. Questions and headings may.
CLAUSE = re.compile(r"(?:^|(?<=[.:;] ))(?:What|Who|Whoever|Whatever|Those that|That of|Of what)\b(?! [^.:;]*\?)[^.:;]*")
PLAIN = (
    "csrc/",
    "python/bindings/",
    "docs/",
    "python/kvtrie/",
)
DATA = "python/kvtrie/data/"  # the text that kv.quality reads: another one would give other figures


def paragraphs(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Prose as it is read, with the place where it begins: lines that follow each other are one. Drawings stay out."""
    marks = r"(?:^ *//(?: {1,3}\S[^\n]*)?\n)+" if name.endswith((".h", ".cpp")) else r"(?:^(?![|#`\n]| {4}\S)[^\n]+\n)+"
    if name.endswith((".py", ".pyi")):
        marks = r'"{3}(?s:.*?)(?:\n\n|"{3})|(?:^ *# [^\n]*\n)+'
    for found in re.finditer(marks, text, flags=re.M):
        for part in re.split(r"\n *//\n|\n(?=- )", found[0]):
            yield found.start(), " ".join(re.sub(r"(?m)^ *(?://|#|- )", "", part).replace('"""', " ").split())


def clauses_as_subjects() -> Warnings:
    for name in those(".md", ".h", ".cpp", ".py", under=PLAIN):
        if name.startswith(DATA):
            continue
        text = text_of(name)
        for start, prose in paragraphs(name, text):
            for found in CLAUSE.finditer(prose):
                yield name, line_of(text, start), f"'{found[0][:60]}...': begin with the thing itself"


# ---- names of files and tests ----------------------------------------------------------------------------------------


def comments(name: str, text: str) -> Iterator[re.Match[str]]:
    """What a reader reads: all of a page, else what follows // or #, and docstrings."""
    if name.endswith(".md"):
        return re.finditer(r"(?s).+", text)
    if name.endswith((".py", ".pyi")):
        return re.finditer(r'"""(?s:.*?)"""|#[^\n]*', text)
    return re.finditer(r"//[^\n]*|^# [^\n]*", text, flags=re.M)


def files_that_are_named() -> Warnings:
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "results").rglob("*")} | {*files()}
    endings = {"/".join(parts[at:]) for parts in (name.split("/") for name in ours) for at in range(len(parts))}
    scripts = those("", under=(".ci/", "dev"))
    for name in [*those(".md", ".cmake", "CMakeLists.txt", ".yml", *CODE), *scripts]:
        text = text_of(name)
        for comment in () if name == OWN or "/data/" in name else comments(name, text):  # data: texts to measure with
            prose = re.sub(r"https?://\S+", lambda link: " " * len(link[0]), comment[0])
            for found in NAME.finditer(prose):
                if re.sub(r"^(\.\./)+", "", found[1]) not in endings | ELSEWHERE:
                    yield name, line_of(text, comment.start() + found.start()), f"names {found[1]}, which is not there"


def tests_that_promises_name() -> Warnings:
    page = "docs/promises.md"
    for line, row in rows(page):
        names = re.findall(r"`(\w+)::([\w.]+)`", row[-1])
        if not (names or row[-1].startswith(("held by", "None remains: "))):
            yield page, line, "a promise without a test, and without 'None remains: ' and the reason"
        for stem, test in names:
            text = "\n".join(map(text_of, those(f"/{stem}.py", f"/{stem}.cpp", under=("tests/",))))
            if stem.endswith("_oracle"):  # what its driver does or checks
                text += "\n".join(map(text_of, those(".h", under=("tests/oracle/",))))
                wanted = rf"^ +(?:[\w:<>&*]+ )+{test}\("
            else:
                suite, _, case = test.partition(".")
                wanted = rf"^TEST(?:_[FP])?\({suite},\s*{case}\)" if case else rf"^def {test}\("
            if not re.search(wanted, text, flags=re.M):
                yield page, line, f"names {stem}::{test}, which is not there"


# ---- pages -----------------------------------------------------------------------------------------------------------


def links_and_commands() -> Warnings:
    import site_links

    commands = set(re.findall(r"^  ([a-z]+)\b", text_of("dev"), flags=re.M))
    for page in those(".md"):
        text, own = text_of(page), page.startswith("docs/") or "/" not in page
        for link in site_links.links(text) if own else ():
            path, anchor = site_links.resolve(page, link)
            if site_links.is_elsewhere(link):
                continue
            line = line_of(text, text.index(f"]({link}"))
            if not (ROOT / path).exists():
                yield page, line, f"links to {link}, which is not there"
            elif anchor and path.endswith(".md") and anchor not in site_links.anchors(text_of(path)):
                yield page, line, f"links to {link}, which is no heading there"
        for found in re.finditer(r"\./dev ([a-z]+)", text):
            if found[1] not in commands:
                yield page, line_of(text, found.start()), f"./dev has no command '{found[1]}'"


def navigation() -> Warnings:
    configuration = text_of("mkdocs.yml")
    named = re.findall(r"^ +- .+: (\S+\.md)$", configuration.split("\nnav:\n")[1], flags=re.M)
    pages = [page[len("docs/") :] for page in those(".md", under=("docs/",))]
    for page in sorted({*named, *pages}):
        if (named.count(page), pages.count(page)) != (1, 1):
            yield "mkdocs.yml", 0, f"{page} is {named.count(page)} times in nav and {pages.count(page)} times in docs/"


def lengths() -> Warnings:
    for start, most in LONGEST.items():
        for name in those(".md", ".py", under=(start,)):
            count = text_of(name).count("\n")
            if count > most and not (start == "docs/" and name.count("/") > 1):
                yield name, 0, f"has {count} lines, more than {most}"


def reference() -> Warnings:
    """Each public name has one place in docs/reference, each folder of headers too."""
    pages = "\n".join(map(text_of, those(".md", under=("docs/reference/",))))
    written = [re.sub(r"\.(\w+)\.\1$", r".\1", name) for name in re.findall(r"^::: (\S+)$", pages, flags=re.M)]
    for node in ast.parse(text_of("python/kvtrie/__init__.py")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            for name in {*ast.literal_eval(node.value)} - {"__version__"}:
                below = any(each.startswith(f"kvtrie.{name}.") for each in written)  # a module, name by name
                if (count := written.count(f"kvtrie.{name}")) != 1 and not below:
                    yield "docs/reference", 0, f"kvtrie.{name} is there {count} times"
    listed = re.findall(r"^<!-- headers: (\S+) -->$", pages, flags=re.M)
    for folder in sorted({posixpath.dirname(name) for name in those(".h", under=("csrc/",))} ^ {*listed}):
        yield "docs/reference/cpp.md", 0, f"{folder}: headers there, and not in the list, or the other way round"


def statistics() -> Warnings:
    """Keys of `stats()` are in docs/stats.md and in its docstring; reasons of a shorter reuse are in docs/using.md."""
    made = "".join(text_of(f"python/bindings/{name}.cpp") for name in ("prefix_cache_stats", "remote_store"))
    keys = {*re.findall(r'^ +(?:result|per_byte|out)\["(\w+)"\] =|^ +\{"(\w+)", \w+\.\w+\}', made, flags=re.M)}
    in_code = {one or other for one, other in keys}
    end = line_of(text_of("docs/stats.md"), text_of("docs/stats.md").index("\n## Why was it not reused?"))
    listed = [row[0] for line, row in rows("docs/stats.md") if line <= end]
    in_page = {key for cell in listed for key in re.findall(r"`(\w+)`", cell)}
    docstring = re.search(r'"stats",.*?R"\((.*?)\)"', text_of("python/bindings/prefix_cache.cpp"), flags=re.S)
    in_docstring = {*re.findall(r"``(\w+)``", docstring[1] if docstring else "")}
    for key in sorted(in_code - in_page):
        yield "docs/stats.md", 0, f"'{key}', a key of stats(), is not there"
    for key in sorted(in_page - in_code):
        yield "docs/stats.md", 0, f"'{key}' is no key of stats()"
    for key in sorted(in_code - in_docstring):
        yield "python/bindings/prefix_cache.cpp", 0, f"'{key}', a key of stats(), is not in its docstring"
    folders = tuple(f"csrc/{each}/" for each in ("tree", "plan", "paging", "exchange", "prefix_cache"))
    core = "".join(map(text_of, those(".cpp", under=folders)))
    for reason in re.findall(r'case ReasonCode::k\w+:\s+return "(\w+)";', core):
        if not re.search(rf"`{reason}`\s\(", text_of("docs/using.md")):
            yield "docs/using.md", 0, f"the reason '{reason}' is not explained"
    faults = re.search(r"kNames\{(.*?)\}", text_of("csrc/store/snapshot_format.cpp"), flags=re.S)
    for fault in re.findall(r'"(\w+)"', faults[1] if faults else "")[1:]:
        if f"`{fault}`" not in text_of("docs/format.md"):
            yield "docs/format.md", 0, f"the fault '{fault}' is not there"


# ---- notebooks, pictures, sources ------------------------------------------------------------------------------------


def notebooks() -> Warnings:
    """What is stored was made from this code (tests/python/test_notebooks.py), and shows no machine's traces."""
    import site_links

    for name in those(".ipynb", under=("examples/notebooks/",)):
        notebook = json.loads(text_of(name))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        if not name.endswith("first_steps.ipynb"):
            digest = hashlib.sha256("\0".join("".join(cell["source"]) for cell in code).encode()).hexdigest()[:16]
            if notebook["metadata"].get("kvtrie", {}).get("sources") != digest:
                yield name, 0, "its outputs were not made from this code: store them anew (docs/notebooks.md)"
        elif any(cell["outputs"] for cell in code):
            yield name, 0, "stored with outputs; this one is for people to fill"
        for found in {trace[0] for cell in code for trace in TRACES.finditer(json.dumps(cell["outputs"]))}:
            yield name, 0, f"outputs have a trace of a machine: {found}"
        for cell in notebook["cells"]:
            for target in re.findall(r"\]\(([^)#]+)[^)]*\)", "".join(cell["source"]) if cell not in code else ""):
                if not (site_links.is_elsewhere(target) or (ROOT / name).parent.joinpath(target).exists()):
                    yield name, 0, f"links to {target}, which is not there"


def first_script() -> Warnings:
    name = "tests/typing/project/first_script.py"
    script = re.findall(r"^```python\n(.*?)^```$", text_of("README.md"), flags=re.M | re.S)[0]
    if text_of(name).partition("\n\n")[2] != script:
        yield name, 0, "is not the first script of README.md"


def drawings() -> Warnings:
    import includes
    import pictures

    for name, draw in pictures.PICTURES.items():
        if draw().svg() != text_of(f"docs/images/{name}.svg"):
            yield f"docs/images/{name}.svg", 0, "not what docs/site/pictures.py draws now"
    if includes.page() != text_of("docs/layers.md"):
        yield "docs/layers.md", 0, "not the includes of now: tests/lint/includes.py --write"
    for plot in sorted((ROOT / "docs" / "results").glob("*/*.svg")):
        if "prefers-color-scheme: dark" not in plot.read_text(encoding="utf-8"):
            yield plot.relative_to(ROOT).as_posix(), 0, "has no colours for dark pages"


def names_that_moved() -> Warnings:
    """Of Python; `renamed.py --write` mends them."""
    for name in those(*renamed.READ):
        if not name.startswith(renamed.HISTORY):
            for line, _ in renamed.changes(name, text_of(name)):
                yield name, line, "names what moved (python/kvtrie/_moved.py): tests/lint/renamed.py --write"


CHECKS: tuple[Callable[[], Warnings], ...] = (
    ruled_out_words,
    clauses_as_subjects,
    names_in_the_glossary,
    files_that_are_named,
    tests_that_promises_name,
    links_and_commands,
    navigation,
    lengths,
    reference,
    names_that_moved,
    statistics,
    notebooks,
    first_script,
    drawings,
)


def main() -> int:
    if sys.argv[1:] == ["--strict"]:
        found = list(clauses_as_subjects())
        for name, line, text in found:
            print(f"{name}:{line}: {text}")
        return 1 if found else 0
    for check in CHECKS:
        try:
            for name, line, text in check():
                print(f"warning: {name}{f':{line}' if line else ''}: {text}")
        except Exception as error:  # a warning, too: a text that is in no form that a check knows stops nobody
            print(f"warning: {OWN}: {check.__name__} failed: {type(error).__name__}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
