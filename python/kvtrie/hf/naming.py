"""A text for whatever hangs on a module, the same for things that compute the same: for :class:`kvtrie.hf.walk.Walk`.

Numbers and texts are written out, tensors are named by their numbers, functions by where they are defined and, outside
the libraries, by their code; containers, configs and other objects by what they hold. An object that is not known is
named by a number that is its own in this process and means nothing in another.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import itertools
import sys
import types
from collections.abc import Mapping, Sized
from typing import Any, Protocol, Union, cast

import torch
from torch.utils.weak import WeakIdKeyDictionary, WeakIdRef
from transformers import PreTrainedConfig

from .tensors import PROCESS

_WRITTEN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, enum.Enum, type(None), range)
_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "numpy", "kvtrie", "functools", "builtins", "math")
# Keys of a config about the library, the place of the files, or the result of a call, and not about K and V.
_IDLE = frozenset(
    (
        "_name_or_path",
        "_commit_hash",
        "_output_attentions",
        "_post_init_done",
        "architectures",
        "dtype",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "problem_type",
        "return_dict",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    )
)
_ATTENTION = "_attn_implementation_internal"
_LONG = 200  # characters above which a text is told by its digest

Holder = Any  # a mapping with keys of any kind, or a list
Values = Mapping[str, Any]  # what hangs on a module, by name: anything
Function = Union[types.FunctionType, types.BuiltinFunctionType, type]

_numbers: WeakIdKeyDictionary = WeakIdKeyDictionary(ref_type=WeakIdRef)  # of objects, while they live
_counted = itertools.count()


class Walked(Protocol):
    """The part of the walk through a model (walk.py) that names need."""

    def watch(self, holder: Holder, key: object) -> object: ...

    def watch_size(self, holder: Sized) -> None: ...

    def tensor(self, path: str, tensor: torch.Tensor) -> str: ...

    def submodule(self, path: str, module: torch.nn.Module) -> str: ...

    def attention(self, name: str) -> str: ...


class Naming:
    """Texts for values; the walk is told of every container that was looked into."""

    def __init__(self, walk: Walked) -> None:
        self._walk = walk
        self._open: set[int] = set()
        self._found: dict[int, tuple[str, object]] = {}  # by id, with the value, so that its id is no other's

    def of(self, path: str, value: object) -> str:
        if isinstance(value, _WRITTEN):
            return repr(value)
        if isinstance(value, torch.Tensor):
            return self._walk.tensor(path, value)
        if isinstance(value, torch.nn.Module):
            return self._walk.submodule(path, value)
        if id(value) in self._open:
            return f"a {type(value).__name__} around it"
        if id(value) not in self._found:
            self._open.add(id(value))
            text = self._compound(path, value)
            self._open.remove(id(value))
            short = text if len(text) < _LONG else hashlib.sha256(text.encode()).hexdigest()
            self._found[id(value)] = (short, value)
        return self._found[id(value)][0]

    def own(self, value: object) -> str:
        """A name of its own."""
        try:
            number = _numbers.setdefault(value, next(_counted))
        except TypeError:  # it cannot be referred to weakly, so it is another one each time
            number = next(_counted)
        return f"{type(value).__name__} {PROCESS} {number}"

    def _compound(self, path: str, value: object) -> str:
        if isinstance(value, dict):
            return self._dict(path, value)
        if isinstance(value, (list, tuple)):
            self._walk.watch_size(value)
            return f"[{', '.join(self.of(f'{path}.{at}', self._walk.watch(value, at)) for at in range(len(value)))}]"
        if isinstance(value, (set, frozenset)):
            self._walk.watch_size(value)
            return f"{{{', '.join(sorted(self.of(path, each) for each in value))}}}"
        if isinstance(value, PreTrainedConfig):
            return self._config(path, value)
        if isinstance(value, functools.partial):
            return f"partial {self.of(path, value.func)} {self.of(path, value.args)} {self.of(path, value.keywords)}"
        if isinstance(value, types.MethodType):
            return f"method {self.of(path, value.__func__)} of {self.of(path, value.__self__)}"
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
            return self._function(value)
        if isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
            return f"{type(value).__module__}.{type(value).__qualname__} {self._dict(path, vars(value))}"
        return self.own(value)

    def _dict(self, path: str, value: Mapping[str, object], but: frozenset[str] = frozenset()) -> str:
        self._walk.watch_size(value)
        found = {key: self.of(f"{path}.{key}", self._walk.watch(value, key)) for key in value if key not in but}
        return f"{{{', '.join(f'{key!r}: {found[key]}' for key in sorted(found, key=repr))}}}"

    def _config(self, path: str, config: PreTrainedConfig) -> str:
        text = self._dict(path, vars(config), _IDLE | {_ATTENTION})
        if isinstance(vars(config).get(_ATTENTION), str):
            text += f" attention {self._walk.attention(cast('str', self._walk.watch(vars(config), _ATTENTION)))}"
        return f"{type(config).__qualname__} {text}"

    def _function(self, value: Function) -> str:
        home, name = getattr(value, "__module__", None) or "", value.__qualname__
        found: object = sys.modules.get(home)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not value:
            return self.own(value)
        if home.partition(".")[0] in _LIBRARIES or not isinstance(value, types.FunctionType):
            return f"{home}.{name}"
        return f"{home}.{name} {_code(value.__code__)}"


def _code(code: types.CodeType) -> str:
    held = hashlib.sha256(code.co_code + repr((code.co_names, code.co_varnames)).encode())
    for constant in code.co_consts:
        held.update((_code(constant) if isinstance(constant, types.CodeType) else repr(constant)).encode())
    return held.hexdigest()


def owner_of(kind: type, name: str) -> type | None:
    """The class among its bases that has the attribute."""
    return next((each for each in kind.__mro__ if name in vars(each)), None)


def capturing(hook: object) -> bool:
    """Whether a hook is one of transformers' that only look, or ask for gradients."""
    home, name = getattr(hook, "__module__", "") or "", getattr(hook, "__qualname__", "")
    return home == "transformers.utils.output_capturing" or (
        home.startswith(("transformers.", "peft.")) and name.endswith("make_inputs_require_grads")
    )


def accelerated(found: object, values: Values) -> bool:
    """Whether a replaced ``forward`` is accelerate's, which moves tensors between devices and calls the former one."""
    hook, former = values.get("_hf_hook"), values.get("_old_forward")
    hooks = getattr(hook, "hooks", (hook,))
    moves = all(
        type(each).__module__ == "accelerate.hooks" and type(each).__name__ in ("AlignDevicesHook", "CpuOffload")
        for each in hooks
    )
    own = isinstance(former, types.MethodType) or type(former).__module__.startswith("kvtrie.")
    return hook is not None and moves and own and getattr(found, "__wrapped__", None) is former
