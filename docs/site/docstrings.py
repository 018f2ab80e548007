"""Gives the classes of the compiled module their docstrings: the stubs that griffe reads have types only."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import griffe
from site_docstrings import as_list, described, plain

_PROGRAM = """
import json, sys
from kvtrie import _core

def walk(owner, path, found):
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and name != "__init__":
            continue
        text = getattr(value, "__doc__", None)
        if isinstance(text, str):
            found[path + name] = text
        if isinstance(value, type) or type(value).__name__ == "module":
            walk(value, path + name + ".", found)
    return found

json.dump(walk(_core, "", {}), sys.stdout)
"""


def _format(owner: Any, function: Any) -> None:
    owner.docstring.value = as_list(owner.docstring.value, {parameter.name for parameter in function.parameters})


class CoreDocstrings(griffe.Extension):
    """``python``: the interpreter that has the module; ``search``: the folder that has the package."""

    def __init__(self, python: str, search: str) -> None:
        super().__init__()
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(
            [str(root / python), "-c", _PROGRAM],
            env={"PYTHONPATH": str(root / search)},
            stdout=subprocess.PIPE,
            check=True,
            timeout=600,
        )
        self.texts: dict[str, str] = json.loads(done.stdout)

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = plain(obj.docstring.value)

    def on_function_instance(self, *, func: griffe.Function, **_: Any) -> None:
        if func.docstring:
            _format(func, func)

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        made = cls.members.get("__init__")
        if cls.docstring and isinstance(made, griffe.Function):
            _format(cls, made)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        if pkg.name != "kvtrie":
            return
        for path, text in self.texts.items():
            try:
                member = pkg["_core"][path]
            except KeyError:  # of no stub: pybind11's own
                continue
            said = plain(described(text)).strip()
            if said and not member.is_alias and not member.docstring:
                member.docstring = griffe.Docstring(said, parent=member)
                if member.is_function:
                    _format(member, member)
