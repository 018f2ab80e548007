"""What a forward pass is given, and whether K and V follow from its tokens alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch

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
)
_NAMED = ("input_ids", "attention_mask", "position_ids", "cache", "past_key_values", "cache_params", "token_type_ids")
_PLAIN = ("return_dict", "use_cache", "logits_to_keep")


class Inputs:
    """The arguments of a decoder's ``forward``. ``ids`` [batch, tokens], or None where it was given embeddings."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        self.arguments = dict(arguments)
        ids = arguments.get("input_ids")
        self.ids: torch.Tensor | None = ids if isinstance(ids, torch.Tensor) and ids.ndim == 2 else None

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
            if name not in _NAMED and name not in _HARMLESS and isinstance(value, torch.Tensor):
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
