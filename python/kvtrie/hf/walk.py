"""The facts that a decoder's forward pass depends on, beside its tokens: one walk over its modules writes them down.

Everything counts that is not known to be without effect: the class of each module and the function that is its
``forward``, its parameters and buffers, every attribute, the config and whatever else hangs on them, the functions of
the files that the classes come from, the attention function. Of peft's LoRA layers only the adapters that are applied
count (adapters.py). ``lines`` are equal exactly where all of it is.

Where code of others may do anything, nothing can be told from outside, and ``why`` names it: hooks, a ``forward`` that
was replaced. It names, too, what makes K and V of a token depend on more than the tokens before it: training mode, and
dynamic quantization.

The walk takes milliseconds. It notes which dictionaries it looked into and what it found there, so that
:meth:`Walk.unchanged` tells within a fraction of one whether another walk would find the same; see docs/transformers.md
for the figures. Units: none; paths are those of ``named_modules``.
"""

from __future__ import annotations

import hashlib
import operator
import sys
import types
from collections.abc import Container, Mapping, MutableSequence, Sized
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from .adapters import SWITCHES, UNUSED, Applied, applied_to, of_adapters
from .forward import Forward
from .naming import Holder, Naming, Values, accelerated, capturing, owner_of
from .tensors import Sample, Tensors, place, version

_STANDARD = frozenset(vars(torch.nn.Module()))
_CONTAINERS = ("_parameters", "_buffers", "_modules")
_MIXING = ("torch.ao.nn.quantized.dynamic", "torch.ao.nn.intrinsic.quantized.dynamic")
_DICTIONARIES = (torch.nn.ModuleDict, torch.nn.ParameterDict)
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
# Attributes of modules that say nothing about what they compute, in eval mode.
_IDLE = frozenset(
    (
        "forward",
        "gradient_checkpointing",
        "_gradient_checkpointing_func",
        "generation_config",
        "name_or_path",
        "peft_config",
        "warnings_issued",
        "_hf_hook",
        "_hf_peft_config_loaded",
        "_is_hf_initialized",
        "_old_forward",
        "_output_capturing_hooks_installed",
    )
)
# The attributes that a rotary embedding sets by itself in each pass, from the length of the text: see ``Walk.longest``.
_TURNING = ("inv_freq", "long_inv_freq", "max_seq_len_cached", "attention_scaling")


class Walk:
    """``lines``: what was found. ``why``: what cannot be told, or None. ``tensors``: by path. ``longest``: tokens of a
    text up to which rotary frequencies do not depend on its length, or None."""

    def __init__(self, root: torch.nn.Module, tensors: Tensors) -> None:
        self.lines: list[str] = []
        self.why: str | None = None
        self.tensors: dict[str, torch.Tensor] = {}
        self.marks: dict[str, str] = {}
        self.rewritten: set[str] = set()  # paths of weights that peft merges adapters into
        self.longest: int | None = None
        self._names = tensors
        self._naming = Naming(self)
        self._sized: list[Sized] = []
        self._holders: list[Holder] = []
        self._keys: list[object] = []
        self._values: list[object] = []
        self._seen: dict[int, str] = {}
        self._classes: set[type] = set()
        self._globals()
        self._module("", root)
        self._naming = Naming(self)  # what it held on to is held by the model
        self._sizes = [*map(len, self._sized)]
        self._tensors = list(self.tensors.values())
        self._versions, self._places = [*map(version, self._tensors)], [*map(place, self._tensors)]
        self._sample = Sample(self._tensors)
        self.digest: str = hashlib.sha256("\n".join(self.lines).encode()).hexdigest()

    def unchanged(self, thorough: bool = False) -> bool:
        """Whether everything is as it was found; ``thorough``: a few numbers of each tensor, too."""
        try:
            return (
                [*map(len, self._sized)] == self._sizes
                and all(map(operator.is_, map(operator.getitem, self._holders, self._keys), self._values))
                and [*map(version, self._tensors)] == self._versions
                and [*map(place, self._tensors)] == self._places
                and not (thorough and self._sample.changed())
            )
        except (KeyError, IndexError):
            return False

    def release(self) -> None:
        """Lets go of the model; :meth:`unchanged` finds no difference any more."""
        for each in (self._sized, self._holders, self._keys, self._values, self._tensors):
            each.clear()
        self._sizes, self._versions, self._places, self._sample, self.tensors = [], [], [], Sample(()), {}
        self._naming = Naming(self)

    # ---- for Naming, too ---------------------------------------------------------------------------------------------

    def watch(self, holder: Holder, key: object) -> Any:
        """The object at ``key``; :meth:`unchanged` tells when another one is there."""
        self._holders.append(holder)
        self._keys.append(key)
        self._values.append(holder[key])
        return holder[key]

    def watch_size(self, holder: Sized) -> None:
        self._sized.append(holder)

    def tensor(self, path: str, tensor: torch.Tensor) -> str:
        self.tensors[path], self.marks[path] = tensor, self._names.mark(tensor)
        return self._names.name(tensor, self.marks[path])

    def submodule(self, path: str, module: torch.nn.Module) -> str:
        if id(module) not in self._seen:
            self._module(path, module)
        return f"module {self._seen[id(module)]}"

    # ---- modules -----------------------------------------------------------------------------------------------------

    def _object(self, why: str) -> None:
        self.why = self.why or why
        self.lines.append(why)

    def _module(self, path: str, module: torch.nn.Module) -> None:
        self._seen[id(module)] = path
        own = applied_to(module)
        values = vars(module)
        self._watch_module(path, module, values)
        if own is not None:
            self._adapted(path, module, own)
            return
        self._class(path, type(module))
        turning = self._turning(module, values)
        for name in list(values):  # another thread may close a cache, which takes its `forward` away
            if name not in _STANDARD and name not in _IDLE and name not in turning:
                self.lines.append(f"{path}.{name} = {self._naming.of(f'{path}.{name}', self.watch(values, name))}")
        self._contents(path, values, turning)

    def _contents(
        self, path: str, values: Values, but: Container[str] = (), names: Container[str] | None = None
    ) -> None:
        """Parameters, buffers and children; ``names``: of those that count, or None."""
        for kind in _CONTAINERS:
            holder = values[kind]
            self.watch_size(holder)
            for name in holder:
                if name not in but and (names is None or name in names):
                    self._one(f"{path}.{name}" if path else name, self.watch(holder, name))

    def _one(self, path: str, value: torch.Tensor | torch.nn.Module | None) -> None:
        if isinstance(value, torch.Tensor):
            self.lines.append(f"{path}: {self.tensor(path, value)}")
        elif value is not None and id(value) in self._seen:
            self.lines.append(f"{path} is {self._seen[id(value)]}")
        elif value is not None:
            self._module(path, value)

    def _watch_module(self, path: str, module: torch.nn.Module, values: Values) -> None:
        self.watch_size(values)
        if self.watch(values, "training") and _random(path, module):
            self._object("the model is in training mode" + (f": {path}" if path else ""))
        for name in _HOOKS:
            self._hooks(path or "the decoder", values[name])
        if "forward" in values:
            self._replaced(path, self.watch(values, "forward"), values)

    def _hooks(self, path: str, hooks: Mapping[int, object]) -> None:
        self.watch_size(hooks)
        for key in hooks:
            hook = self.watch(hooks, key)
            if not capturing(hook):
                self._object(f"a forward hook on {path}: {getattr(hook, '__qualname__', type(hook).__name__)}")
                self.lines.append(f"{path} hook {self._naming.own(hook)}")

    def _replaced(self, path: str, found: object, values: Values) -> None:
        if isinstance(found, Forward):
            found = found.earlier
        if found is not None and not accelerated(found, values):
            self._object(f"a forward that was replaced: {path or 'the decoder'}")
            self.lines.append(f"{path} forward {self._naming.own(found)}")

    def _class(self, path: str, kind: type) -> None:
        self.lines.append(f"{path}: {kind.__module__}.{kind.__qualname__}")
        if kind in self._classes:
            return
        self._classes.add(kind)
        owner = owner_of(kind, "forward")
        if owner is not None:
            self.watch_size(vars(kind))
            function = self.watch(vars(owner), "forward")
            self.lines.append(f"{kind.__qualname__}.forward = {self._naming.of('', function)}")
        if kind.__module__.startswith(_MIXING):
            self._object(f"{kind.__name__} of torch.ao, which rounds by all of the tokens in a pass: {path}")
        if not kind.__module__.startswith("torch."):
            self._file(kind.__module__)

    def _file(self, name: str) -> None:
        """The functions that a file of model code calls by their names; torch.compile adds some of its own."""
        file = sys.modules.get(name)
        if file is None or id(file) in self._seen:
            return
        self._seen[id(file)] = name
        found = vars(file)
        self.watch_size(found)
        functions = [key for key, value in found.items() if isinstance(value, types.FunctionType)]
        for key in (key for key in functions if not key.startswith("__")):
            self.lines.append(f"{name}.{key} = {self._naming.of('', self.watch(found, key))}")

    # ---- what needs to be known of some modules ----------------------------------------------------------------------

    def _adapted(self, path: str, module: torch.nn.Module, applied: Applied) -> None:
        """A LoRA layer: its base layer in its place, and the parts of the adapters that are applied."""
        values = vars(module)
        for name in SWITCHES:
            held = values.get(name)
            if name in values:
                self.watch(values, name)
            if isinstance(held, (MutableSequence, dict)):
                self.watch_size(held)
                for key in held if isinstance(held, dict) else range(len(held)):
                    self.watch(held, key)
        if applied.unmerges:
            self._object(f"an adapter that is merged and disabled, which the pass itself takes out: {path}")
        base = self.watch(values["_modules"], "base_layer")
        self._one(path, base)
        self.rewritten |= {f"{path}.{name}" for name in base._parameters}
        if applied.names:
            self._class(path, type(module))
            self.lines.append(f"{path} {'merged' if applied.merged else 'applied'} {applied.names}")
            self._parts(path, values, applied)

    def _parts(self, path: str, values: Values, applied: Applied) -> None:
        for name, value in values.items():
            if name in _STANDARD or name in _IDLE or name in UNUSED:
                continue
            self.watch(values, name)
            if isinstance(value, dict) and of_adapters(value, applied.known):
                chosen = {key: self.watch(value, key) for key in value if key in applied.names}
                self.watch_size(value)
                about = {key: self._naming.of(f"{path}.{name}.{key}", each) for key, each in chosen.items()}
                self.lines.append(f"{path}.{name} = {about}")
            else:
                self.lines.append(f"{path}.{name} = {self._naming.of(f'{path}.{name}', value)}")
        for kind in _CONTAINERS:
            for name, part in values[kind].items():
                if name != "base_layer":
                    self.watch(values[kind], name)
                    self._part(f"{path}.{name}", part, applied)

    def _part(self, path: str, part: torch.Tensor | torch.nn.Module | None, applied: Applied) -> None:
        """A dictionary of torch by the names of adapters is never called: what counts is what it has for those."""
        holders = [vars(part)[kind] for kind in _CONTAINERS] if isinstance(part, torch.nn.Module) else []
        if type(part) in _DICTIONARIES and all(not each or of_adapters(each, applied.known) for each in holders):
            self._contents(path, vars(part), names=applied.names)
        else:
            self._one(path, part)

    def _turning(self, module: torch.nn.Module, values: Values) -> frozenset[str]:
        """Names of what a rotary embedding sets by itself, and up to which length it sets the usual."""
        kinds = values.get("rope_type")
        each = kinds if isinstance(kinds, dict) else {"": kinds}
        found: list[str] = []
        for prefix, kind in each.items():
            if not isinstance(kind, str) or not ("dynamic" in kind or kind == "longrope"):
                continue
            start = f"{prefix}_" if prefix else ""
            found += [start + name for name in _TURNING] + list(_TURNING[2:])
            longest = _usual(module, prefix, kind)
            self.longest = longest if self.longest is None else min(self.longest, longest)
        return frozenset(found)

    # ---- what is the same for all modules ----------------------------------------------------------------------------

    def _globals(self) -> None:
        for name in ("_global_forward_pre_hooks", "_global_forward_hooks"):
            self._hooks("all modules", getattr(torch.nn.modules.module, name))

    def attention(self, name: str) -> str:
        """The attention function that a config names; the same for those that only round differently."""
        for mapping in (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping):
            if name in mapping:
                self.watch(mapping, name)
        function = AttentionInterface._global_mapping.get(name)
        home = getattr(function, "__module__", "")
        usual = home == "transformers.integrations.sdpa_attention" or home == f"{__package__}.cells"
        return "default" if name == "eager" or usual else f"{name} {self._naming.of('', function)}"


def _random(path: str, module: torch.nn.Module) -> bool:
    """Whether a module computes otherwise in training mode; parts of torch do only where they drop something out."""
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return bool(module.p)
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        return True
    return not path or type(module).__module__.partition(".")[0] not in ("torch", "peft")


def _usual(module: torch.nn.Module, prefix: str, kind: str) -> int:
    if "dynamic" in kind:
        return int(module.original_max_seq_len) - 1
    parameters = module.config.rope_parameters
    return int((parameters[prefix] if prefix else parameters)["original_max_position_embeddings"])
