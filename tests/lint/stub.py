"""Writes python/kvtrie/_core.pyi, the types of the C++ core, from the signatures that the module itself has.

    .venv-tests/bin/python tests/lint/stub.py            # the file anew
    .venv-tests/bin/python tests/lint/stub.py --check    # 1 if the file says something else than the module

A bound function documents its own signature: ``f(self: kvtrie._core.A, x: int | None = None) -> list[int]``. Where a
binding takes or gives any object, python/bindings/typed.h puts the type there. Names of types that are no classes of
the module are declared below. Needs the module, and ruff for the format. tests/python/test_surface.py fails where the
file is not current.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STUB = ROOT / "python" / "kvtrie" / "_core.pyi"

HEAD = '''"""Types of the C++ core, written by tests/lint/stub.py from its signatures. The module has the docstrings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from typing_extensions import Self, TypeAlias

from ._quotas import Amounts, NamespaceUsage
from ._values import Reason, Reprocess
from .explain import Fields as ExplanationFields

Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt64Array: TypeAlias = npt.NDArray[np.uint64]
RowArray: TypeAlias = npt.NDArray[np.float32 | np.float16]  # the dtype of the cache
ArrayLike: TypeAlias = Any  # buffer protocol, __array__, __dlpack__, Tensor, or nested sequences of numbers
Integers: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]] | Tensor
Bytes: TypeAlias = int | str
Spans = Sequence[tuple[int, int]]
Key: TypeAlias = bytes | bytearray | Sequence[bytes | bytearray]
Keys: TypeAlias = Key | Mapping[str, Key] | None
Place: TypeAlias = str | Device | None
Rope: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
AnyCache: TypeAlias = CausalCache | RecurrentCache | EncoderCache | HybridCache
'''

# What pybind11 writes, and what the stub says for it.
WORDS = [
    (r"typing\.SupportsInt \| typing\.SupportsIndex", "int"),
    (r"typing\.SupportsFloat \| typing\.SupportsIndex", "float"),
    (r"\b(kvtrie\._core|collections\.abc|typing)\.", ""),
]
# Of every class: what objects of all classes have, and what no caller writes.
COMMON = {"__module__", "__doc__", "__dict__", "__weakref__", "__new__", "__del__", "__repr__"}
COMMON |= {"__reduce__", "__reduce_ex__"}


def signature(function: Any) -> ast.FunctionDef:
    """The first line of a bound function's documentation; ``function`` may be what reads a property."""
    line = (function.__doc__ or "").split("\n")[0].strip()
    for pattern, word in WORDS:
        line = re.sub(pattern, word, line)
    line = re.sub(r"^\(", "_(", line)  # what reads a property has no name
    try:
        made = ast.parse(f"def {line}: ...").body[0]
    except SyntaxError as error:
        raise ValueError(f"[stub] {function.__name__}: got {line!r}, allowed a signature in Python") from error
    assert isinstance(made, ast.FunctionDef)
    return made


def method(name: str, function: Any, decorator: str = "") -> Iterator[str]:
    made = signature(function)
    made.name = name
    arguments = made.args.args
    if decorator == "property" and arguments:
        arguments[0].arg = "self"
    if arguments and arguments[0].arg == "self":
        arguments[0].annotation = None
    if made.args.vararg is not None:
        made.args.vararg.annotation = ast.Name("object")
    if decorator:
        yield f"@{decorator}"
    yield ast.unparse(made).replace(":\n    ...", ": ...")


def attribute(name: str) -> str:
    """One that is None: what a base of every class has, and this class has not."""
    ignored = "  # type: ignore[assignment]" if name == "__hash__" else ""
    return f"{name}: ClassVar[None]{ignored}"


def member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield from method(name, value.fget, "property")
    elif isinstance(value, staticmethod):
        yield from method(name, value.__func__, "staticmethod")
    elif value is None:
        yield attribute(name)
    elif inspect.isclass(value):
        yield from class_of(name, value)
    elif isinstance(value, ModuleType):
        yield from submodule(name, value)
    elif callable(value):
        yield from method(name, value)


def is_shown(name: str, value: Any) -> bool:
    """A class that cannot be made from Python has the constructor of pybind11's base class."""
    made = name != "__init__" or "Initialize self" not in (value.__doc__ or "")
    return name not in COMMON and made and not name.startswith("_pybind11")


def class_of(name: str, owner: type) -> Iterator[str]:
    yield f"class {name}:"
    lines = [line for each, value in vars(owner).items() if is_shown(each, value) for line in member(each, value)]
    yield from indented(lines or ["..."])


def submodule(name: str, owner: ModuleType) -> Iterator[str]:
    """As a class, so that one file has all: every function of it is one of no object."""
    yield f"class {name}:  # noqa: N801"
    yield f'    """A submodule of the core; the public names are those of ``kvtrie.{name}``."""'
    for each, value in vars(owner).items():
        if not each.startswith("__"):
            decorator = "" if inspect.isclass(value) else "staticmethod"
            yield from indented(class_of(each, value) if not decorator else method(each, value, decorator))


def indented(lines: Iterator[str] | list[str]) -> Iterator[str]:
    return (f"    {line}" for line in lines)


def generated() -> str:
    """The text of the stub, not yet in ruff's format."""
    sys.path.insert(0, str(ROOT / "python"))
    from kvtrie import _core

    lines = [HEAD, "__version__: str"]
    for name, value in vars(_core).items():
        if not name.startswith("__"):
            lines += member(name, value)
    return "\n".join(lines) + "\n"


def formatted(text: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main() -> int:
    made = formatted(generated())
    if "--check" not in sys.argv[1:]:
        STUB.write_text(made, encoding="utf-8")
        return 0
    if made == STUB.read_text(encoding="utf-8"):
        return 0
    print("python/kvtrie/_core.pyi is not that of the module: tests/lint/stub.py writes it", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
