"""The arguments of a forward pass: whether K and V follow from its tokens alone, and which rows it has to compute."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import NamedTuple

import torch
from transformers import cache_utils as hf

from ..errors import ArgumentError

# Arguments that say nothing about K and V of the tokens.
_HARMLESS = (
    "use_cache",
    "return_dict",
    "logits_to_keep",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "num_logits_to_keep",
    "num_items_in_batch",
    "labels",
    "shift_labels",
)
# Outputs that have a row for each token, or are made of all of them; the config may ask for them, too.
_OUTPUTS = ("output_hidden_states", "output_attentions", "output_router_logits")
_NAMED = ("input_ids", "attention_mask", "position_ids", "cache", "past_key_values", "cache_params", "token_type_ids")
_GENERATE, _BEGINNINGS = "transformers.generation.utils", ("_prefill", "_assisted_decoding")
_PLAIN = ("return_dict", "use_cache", "logits_to_keep")


class Asked(NamedTuple):
    """The rows of its tokens that a call needs: the last ``rows`` at least, or all of them, and ``why``."""

    rows: int = 0
    why: str | None = None

    def joined(self, other: Asked) -> Asked:
        return Asked(max(self.rows, other.rows), self.why or other.why)

    def beyond(self, computed: int) -> bool:
        """Whether that is more than the last ``computed`` rows."""
        return self.why is not None or self.rows > computed


NOTHING = Asked()


def asked_of(arguments: Mapping[str, object], config: object = None) -> Asked:
    """Of the arguments of a head or a decoder; ``config`` is asked where they are silent."""
    for name in ("labels", "shift_labels"):
        if arguments.get(name) is not None:
            return Asked(why=f"{name}, for which the rows of all tokens are needed")
    for name in _OUTPUTS:
        given = arguments.get(name)
        if given if given is not None else getattr(config, name, False):
            return Asked(why=f"{name}, for which the rows of all tokens are needed")
    keep = arguments.get("logits_to_keep")
    if keep is None or (isinstance(keep, int) and keep >= 0):
        return Asked(rows=keep or 0)
    return Asked(why="logits_to_keep with rows of its own, which are counted from the first token")


def text_of_generate(cache: hf.Cache, caller: FrameType | None, calls: int = 1) -> Inputs | None:
    """All of the text, where one of the latest ``calls`` is what begins ``generate`` of transformers with ``cache``, at
    its first pass. ``generate`` leaves out as many tokens as the cache says that it has, whichever they are, or none;
    only there all of them are at hand."""
    for _ in range(calls):
        if caller is None:
            return None
        if caller.f_code.co_name in _BEGINNINGS and caller.f_globals.get("__name__") == _GENERATE:
            return _text_of(cache, caller.f_locals)
        caller = caller.f_back
    return None


def _text_of(cache: hf.Cache, known: Mapping[str, object]) -> Inputs | None:
    """None where the call has the new tokens only, or embeddings. ``known``: its names."""
    assisted = "candidate_kwargs" in known
    ids = known.get("candidate_input_ids" if assisted else "input_ids")
    arguments = known.get("candidate_kwargs" if assisted else "model_kwargs")
    first = known.get("is_first_iteration") if assisted else not known.get("chunk_idx", 0)
    if not first or known.get("cache") is not cache or not isinstance(arguments, dict):
        return None
    if arguments.get("inputs_embeds") is not None or not isinstance(ids, torch.Tensor) or ids.ndim != 2:
        return None
    mask = arguments.get("attention_mask")
    width = ids.shape[1] if mask is None and assisted else _width(mask, known.get("generation_config"))
    return Inputs({"input_ids": ids, "attention_mask": mask}) if ids.shape[1] == width else None


def _width(mask: torch.Tensor | None, config: object) -> int:
    """Of a mask that ``generate`` was given; it takes out one of ones alone."""
    return int(getattr(config, "_mask_length", -1)) if mask is None else mask.shape[-1]


class Inputs:
    """The arguments of a decoder's ``forward``. ``ids`` [batch, tokens], or None where it was given embeddings."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self.arguments = dict(arguments)
        ids = arguments.get("input_ids")
        self.ids: torch.Tensor | None = ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 else None

    @classmethod
    def of_tokens(cls, like: Inputs, rows: list[list[int]], pads: list[int]) -> Inputs:
        """A pass over known tokens alone, padded on the left, with the same cache as ``like``."""
        width = len(rows[0]) + pads[0]
        device = like.ids.device if like.ids is not None else None
        ids = torch.tensor([[0] * pad + row for row, pad in zip(rows, pads)], device=device)
        made: dict[str, object] = {"input_ids": ids, "use_cache": True}
        made.update({name: value for name, value in like.arguments.items() if isinstance(value, hf.Cache)})
        if any(pads):
            columns = torch.arange(width, device=device).unsqueeze(0) - torch.tensor(pads, device=device).unsqueeze(1)
            made.update(attention_mask=(columns >= 0).long(), position_ids=columns.clamp(min=0))
        return cls(made)

    @property
    def size(self) -> tuple[int, int]:
        given = self.ids if self.ids is not None else self.arguments.get("inputs_embeds")
        if not isinstance(given, torch.Tensor):
            raise ArgumentError("[hf] input_ids: got neither input_ids [batch, tokens] nor inputs_embeds")
        return int(given.shape[0]), int(given.shape[1])

    @property
    def mask(self) -> torch.Tensor | None:
        mask = self.arguments.get("attention_mask")
        return mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None

    def real(self, row: int) -> list[int] | None:
        """Token ids of a row of a first pass, without the padding on its left. None: it is elsewhere, or no ids."""
        if self.ids is None:
            return None
        ids = [int(token) for token in self.ids[row].tolist()]
        if self.arguments.get("attention_mask") is None:
            return ids
        bits = [bool(bit) for bit in self.mask[row].tolist()] if self.mask is not None else []
        pad = len(ids) - sum(bits)
        return None if len(bits) != len(ids) or any(bits[:pad]) or pad == len(ids) else ids[pad:]

    def asked(self, decoder: torch.nn.Module) -> Asked:
        """Of this pass, by its arguments and the decoder's config."""
        return asked_of(self.arguments, decoder.config)

    def split(self, cuts: list[int], before: int) -> list[Inputs]:
        """The same pass in pieces that end at the columns ``cuts``; ``before``: columns of earlier passes."""
        edges = [0, *cuts, self.size[1]]
        return [self.part(a, b, before) for a, b in zip(edges, edges[1:])]

    def part(self, first: int, last: int, before: int) -> Inputs:
        """Its columns from ``first`` to ``last``."""
        made = dict(self.arguments)
        for name in ("input_ids", "position_ids", "token_type_ids"):
            value = made.get(name)
            if isinstance(value, torch.Tensor):
                made[name] = value[..., first:last]
        if self.mask is not None:
            made["attention_mask"] = self.mask[:, : before + last]
        return Inputs(made)

    @property
    def divisible(self) -> bool:
        """Whether it can be computed in pieces: nothing is asked for but the last hidden states."""
        mask = self.arguments.get("attention_mask")
        return (
            self.ids is not None
            and (mask is None or self.mask is not None)
            and all(
                name in _NAMED or name in _PLAIN or value is None or value is False
                for name, value in self.arguments.items()
            )
            and self.arguments.get("return_dict") is not False
        )

    def objection(self, pads: list[int], before: int) -> str | None:
        """Why K and V are not those of the tokens alone, or None. ``before``: columns of earlier passes."""
        if self.ids is None:
            return "inputs_embeds instead of input_ids"
        for name, value in self.arguments.items():
            if name not in _NAMED and name not in _HARMLESS and value is not None:
                return f"an argument {name}"
        types = self.arguments.get("token_type_ids")
        if isinstance(types, torch.Tensor) and bool(types.any()):
            return "token_type_ids"
        return self._mask_objection(pads, before) or self._position_objection(pads, before)

    def _mask_objection(self, pads: list[int], before: int) -> str | None:
        mask = self.arguments.get("attention_mask")
        if mask is None:
            return "padding without an attention_mask" if any(pads) else None
        columns = before + self.size[1]
        if self.mask is None or self.mask.shape[1] != columns:
            return "an attention_mask that is not [batch, all tokens so far]"
        wanted = torch.arange(columns).unsqueeze(0) >= torch.tensor(pads).unsqueeze(1)
        return None if torch.equal(self.mask.cpu().bool(), wanted) else "an attention_mask with holes"

    def _position_objection(self, pads: list[int], before: int) -> str | None:
        positions = self.arguments.get("position_ids")
        if positions is None:
            return "padding without position_ids" if any(pads) else None
        if not isinstance(positions, torch.Tensor) or positions.shape[-1] != self.size[1]:
            return "position_ids of another shape"
        columns = torch.arange(before, before + self.size[1]).unsqueeze(0) - torch.tensor(pads).unsqueeze(1)
        given = positions.cpu().reshape(-1, positions.shape[-2], positions.shape[-1])
        same = (given == columns) | (columns < 0)
        return None if bool(same.all()) else "position_ids of its own"
