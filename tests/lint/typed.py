"""Warnings about the public surface: what has no docstring, no clear type, or no use in tests/typing/project.

    .venv/bin/python tests/lint/typed.py     needs the module and pyright; `./dev lint` prints what it says

Always exits with 0. What tests/typing/project uses is checked by mypy and pyright, whose findings are failures of lint.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
TYPING = ROOT / "tests" / "typing"
sys.path[:0] = [str(ROOT / "python"), str(TYPING)]

DRIVEN = "what batches drive it by, no call of users"
FAMILY = "what a family of models says about itself"
ALLOWED = {  # and why
    "kvtrie.Sampler": (DRIVEN, "draw choice"),
    "kvtrie.Batch": (DRIVEN, "make take"),
    "kvtrie.models.Model": (
        FAMILY,
        "architectures gguf norm_offset parse_config adapt tensor_shapes layers_shapes layer_plan build_rest "
        "attention_groups embed finish settings ropes_by_kind ignored",
    ),
    "kvtrie.ray.scale.ScaleOptions": ("pydantic's own", "model_config"),
    "kvtrie.hf.Cache": ("what its sessions ask it", "decoder layout longest"),
    "kvtrie.hf.Past": (
        "what a forward pass does with it",
        "fall_back expect forward cache form rows is_compileable",
    ),
}
PARTS = ("caches", "errors", "hf", "models", "ops", "ray.scale", "ray", "replay", "results", "stores", "trie", "viz")
BELOW = tuple(f"kvtrie.{part}." for part in PARTS)
MAY_MISS = {f"{owner}.{name}" for owner, (_, names) in ALLOWED.items() for name in names.split()}


class Uses(ast.NodeVisitor):
    """Names of kvtrie that one file uses; members by the annotations of the functions' arguments."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # what a name in the file stands for
        self.found: set[str] = set()

    def full_name(self, node: Optional[ast.AST]) -> Optional[str]:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

    def class_of(self, annotation: Optional[ast.expr]) -> Optional[str]:
        """Of ``Request[int]`` it is ``Request``."""
        return self.full_name(annotation.value if isinstance(annotation, ast.Subscript) else annotation)

    def visit_Import(self, node: ast.Import) -> None:
        self.names.update((each.asname or each.name, each.name) for each in node.names if each.name == "kvtrie")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if (node.module or "").split(".")[0] == "kvtrie":
            for each in node.names:
                self.names[each.asname or each.name] = f"{node.module}.{each.name}"
                self.found.add(f"{node.module}.{each.name}")

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before = dict(self.names)
        for argument in node.args.args:
            of_class = self.class_of(argument.annotation)
            self.names.pop(argument.arg, None)
            if of_class is not None:
                self.names[argument.arg] = of_class
        self.generic_visit(node)
        self.names = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self.full_name(node)
        if name is not None:
            self.found.add(name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self.full_name(node.func)
        self.found.update(f"{name}.{each.arg}" for each in node.keywords if name is not None)
        self.generic_visit(node)


def unused(public: dict[str, object]) -> Iterator[str]:
    uses = Uses()
    for path in sorted((TYPING / "project").glob("*.py")):
        uses.visit(ast.parse(path.read_text(encoding="utf-8")))
    for name in sorted(set(public) - uses.found - MAY_MISS):
        yield f"tests/typing/project: {name} is not used there, so no type checker sees it"
    for name in sorted((MAY_MISS - set(public)) | (MAY_MISS & uses.found)):
        yield f"tests/lint/typed.py: {name} is gone, or used in tests/typing/project: take it out of ALLOWED"


def undocumented(public: dict[str, object]) -> Iterator[str]:
    for name, value in public.items():
        found = member(name) if value is None else value
        if (callable(found) or isinstance(found, property)) and not inspect.getdoc(found):
            yield f"python/kvtrie: {name} has no docstring"


def member(name: str) -> object:
    """Of a class, as it stands there: a function, a property, or None for what only its objects have."""
    module, owner, last = name.rsplit(".", 2)
    return inspect.getattr_static(getattr(importlib.import_module(module), owner), last, None)


def unclear(public: dict[str, object]) -> Iterator[str]:
    """By pyright's count: what it would have to infer, another checker may infer differently."""
    command = [sys.executable, "-m", "pyright", "--verifytypes", "kvtrie", "--ignoreexternal", "--outputjson"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    short = {name.split(".", 2 if name.startswith(BELOW) else 1)[-1] for name in public}
    symbols = json.loads(asked.stdout)["typeCompleteness"]["symbols"]
    wanted = [each for each in symbols if each["isExported"] and ends_in(each["name"], short)]
    if len(wanted) < len(short) / 2:  # members that are inherited, modules and exceptions go by other names
        yield f"tests/lint/typed.py: pyright knows only {len(wanted)} of {len(short)} public names"
    for each in wanted:
        if each["isTypeAmbiguous"] or not each["isTypeKnown"]:
            yield f"python/kvtrie: the type of {each['name']} has to be inferred"


def ends_in(name: str, public: set[str]) -> bool:
    """Whether a symbol, "kvtrie._values.Node.age", is one of "Node.age" and others."""
    *modules, owner, last = name.split(".")
    if {"cli", "serve", "families", "gguf"} & set(modules):  # nothing of theirs is public
        return False
    if "hf" in name.split("."):  # sessions have a base class of transformers', which has no types
        return False
    return f"{owner}.{last}" in public or (last in public and not owner[0].isupper())


def main() -> None:
    try:
        from surface import surface

        public = surface()
        for check in (unused, undocumented, unclear):
            for text in check(public):
                print(f"warning: {text}")
    except Exception as error:  # a warning, too: without the module or pyright nothing of this is known
        print(f"warning: tests/lint/typed.py failed: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
