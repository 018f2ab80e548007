"""How a family stands in GGUF files, as data: what :attr:`Model.gguf` holds for each architecture's name.

Kept apart from ``gguf/``, whose packages take half a second to import.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from .settings import Setting

if TYPE_CHECKING:
    from .config import ModelConfig
    from .gguf.metadata import Description


def no_tensors(config: ModelConfig) -> Collection[str]:  # noqa: ARG001 (others look at it)
    return ()


class GgufForm(NamedTuple):
    """``read``: the keys as a ``config.json``. ``leaves``: tensors that have other names than those of most families.

    ``settings``: what becomes of the architecture's keys, where it is not as in gguf_settings.py's ``ARCHITECTURE``.
    ``offset_norms``: norms are stored with the one of (1 + weight). ``pairs``: q and k rotate neighbouring numbers.
    ``round_robin``: value heads of recurrent layers go round robin over the key heads. ``divided``: frequencies are
    divided by the factors of ``rope_freqs.weight``, if the file has them. ``apart``: tensors that a file may
    have and the model does not: ``read`` looks at them, or nothing does.
    """

    read: Callable[[Description], dict[str, object]]
    leaves: Mapping[str, str] = {}
    settings: Mapping[str, Setting] = {}
    offset_norms: bool = False
    pairs: bool = False
    round_robin: bool = False
    divided: bool = False
    apart: Callable[[ModelConfig], Collection[str]] = no_tensors
