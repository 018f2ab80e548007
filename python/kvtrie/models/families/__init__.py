"""The families of models, one file each. Every :class:`Model` that a file of this folder defines is found by itself.

A family says by which names checkpoints call it (``family``, ``architectures``), how its ``config.json`` is read
(``parse_config``), what its layers are made of (``layer_plan``), which of them see and rotate alike
(``attention_groups``), and how GGUF files write it down (``gguf``). Nothing outside its file names it.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..base import Model


def _found() -> list[type[Model]]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    classes = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return list(dict.fromkeys(each for each in classes if issubclass(each, Model) and each.family))


FAMILIES: dict[str, type[Model]] = {family.family: family for family in _found()}  # by model_type
ARCHITECTURES: dict[str, type[Model]] = {
    name: family for family in reversed(FAMILIES.values()) for name in family.architectures
}  # by what config.json calls the class; the first that has it, where several do
