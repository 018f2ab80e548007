"""What users of kvtrie may call: every name of its public modules, and every member of their classes.

    python tests/typing/surface.py    lists them

A member is what a class of ours says itself or has from a class of ours: methods, properties, fields, and what its
``__init__`` sets, without an underscore. Exceptions count by name alone.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import textwrap
from collections.abc import Iterator

PARTS = ("caches", "errors", "hf", "models", "ops", "ray", "ray.scale", "replay", "results", "stores", "trie", "viz")
MODULES = ("kvtrie", *(f"kvtrie.{part}" for part in PARTS))


def surface() -> dict[str, object]:
    """By its full name, "kvtrie.Session.append", what is there; a class that several modules name counts once."""
    found: dict[str, object] = {}
    classes: set[type] = set()
    for module in MODULES:
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            value = getattr(loaded, name)
            found[f"{module}.{name}"] = value
            if isinstance(value, type) and value not in classes and not issubclass(value, BaseException):
                classes.add(value)
                found.update((f"{module}.{name}.{member}", None) for member in members(value))
    return found


def members(owner: type) -> Iterator[str]:
    """Public names of one class."""
    names: dict[str, None] = {}
    for each in owner.__mro__:
        if each.__module__.split(".")[0] == "kvtrie":
            names.update(dict.fromkeys(vars(each)))
            names.update(dict.fromkeys(vars(each).get("__annotations__", ())))
            names.update(dict.fromkeys(set_in_init(each)))
    if dataclasses.is_dataclass(owner):
        names.update(dict.fromkeys(field.name for field in dataclasses.fields(owner)))
    return (name for name in names if not name.startswith("_"))


def set_in_init(owner: type) -> Iterator[str]:
    """Attributes of ``self`` that a class sets in Python."""
    function = vars(owner).get("__init__")
    if not inspect.isfunction(function) or dataclasses.is_dataclass(owner):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


if __name__ == "__main__":
    print("\n".join(surface()))
