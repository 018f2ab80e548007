"""The users' package in tests/typing, which `./dev lint` checks with mypy and pyright, has every public call."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

import kvtrie as kv
from processes import run_python

TYPING = Path(__file__).resolve().parents[1] / "typing"
PROJECT = sorted((TYPING / "project").glob("*.py"))

DRIVEN = "what batches drive it by, no call of users"
FAMILY = "what a family of models says about itself"
ALLOWED = {  # and why
    "kvtrie.Generation": (DRIVEN, "live settle on_device draw take choose accept ready"),
    "kvtrie.Sampler": (DRIVEN, "draw choice"),
    "kvtrie.Batch": (DRIVEN, "make take"),
    "kvtrie.models.Model": (
        FAMILY,
        "architectures gguf norm_offset parse_config adapt tensor_shapes layers_shapes layer_plan build_rest "
        "attention_groups embed finish ignores",
    ),
    "kvtrie.scale.ScaleOptions": ("pydantic's own", "model_config"),
    "kvtrie.hf.Cache": ("what its sessions ask it", "decoder layout longest like"),
    "kvtrie.hf.Past": (
        "what a forward pass does with it",
        "open fall_back expect forward cache form rows is_compileable",
    ),
}
BELOW = tuple(f"kvtrie.{n}." for n in ("errors", "hf", "models", "ops", "ray", "scale", "simulate", "stores", "viz"))
MAY_MISS = {f"{owner}.{name}" for owner, (_, names) in ALLOWED.items() for name in names.split()}


def surface() -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("typing_surface", TYPING / "surface.py")
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return dict(module.surface())


class Uses(ast.NodeVisitor):
    """Names of kvtrie that one file uses; members by the annotations of the functions' arguments."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # what a name in the file stands for
        self.found: set[str] = set()

    def full_name(self, node: ast.AST) -> str | None:
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.full_name(node.value)
            return None if owner is None else f"{owner}.{node.attr}"
        return None

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
            of_class = None if argument.annotation is None else self.full_name(argument.annotation)
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


def used() -> set[str]:
    found: set[str] = set()
    for path in PROJECT:
        uses = Uses()
        uses.visit(ast.parse(path.read_text(encoding="utf-8")))
        found |= uses.found
    return found


def test_every_public_name_and_member_is_used() -> None:
    missing = set(surface()) - used() - MAY_MISS
    assert not missing, f"use them in tests/typing/project, so that type checkers see them: {sorted(missing)}"


def test_what_is_allowed_to_be_missing_is_there_and_unused() -> None:
    assert set(surface()) >= MAY_MISS
    assert not MAY_MISS & used()


def test_a_use_counts_for_its_own_class_only() -> None:
    uses = Uses()
    uses.visit(
        ast.parse(
            "import kvtrie as kv\ndef f(s: kv.Session, t: list[int]) -> None:\n  s.close(); t.append(kv.media(1))"
        )
    )
    assert uses.found == {"kvtrie.Session", "kvtrie.Session.close", "kvtrie.media"}
    uses.visit(ast.parse("def g(s: int) -> None:\n  s.rewind(); kv.Sampling(seed=1)"))
    assert {"kvtrie.Sampling.seed"} < uses.found and "kvtrie.Session.rewind" not in uses.found


def test_every_public_type_is_written_down() -> None:
    """By pyright's count: what it would have to infer, another checker may infer differently."""
    pytest.importorskip("pyright", reason="requirements-dev.txt has it")
    package = {"PYTHONPATH": str(Path(kv.__file__).parents[1])}
    asked = run_python(
        "-m", "pyright", "--verifytypes", "kvtrie", "--ignoreexternal", "--outputjson", environment=package
    )
    symbols = json.loads(asked.stdout)["typeCompleteness"]["symbols"]
    public = {name.split(".", 2 if name.startswith(BELOW) else 1)[-1] for name in surface()}
    wanted = [each for each in symbols if each["isExported"] and ends_in(each["name"], public)]
    assert len(wanted) > len(public) / 2  # members that are inherited, modules and exceptions go by other names
    unclear = [each["name"] for each in wanted if not each["isTypeKnown"] or each["isTypeAmbiguous"]]
    assert unclear == []


def ends_in(name: str, public: set[str]) -> bool:
    """Whether a symbol, "kvtrie._values.Node.age", is one of "Node.age" and others."""
    *modules, owner, last = name.split(".")
    if {"cli", "serve", "families", "gguf"} & set(modules):  # nothing of theirs is public
        return False
    if "hf" in name.split("."):  # sessions have a base class of transformers', which has no types
        return False
    return f"{owner}.{last}" in public or (last in public and not owner[0].isupper())


@pytest.mark.parametrize("line", (TYPING / "wrong.py").read_text(encoding="utf-8").splitlines())
def test_wrong_uses_say_which_error_they_are(line: str) -> None:
    assert "# type: ignore" not in line or "# type: ignore[" in line
