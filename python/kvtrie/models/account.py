"""The account of a model's files: what was read of each, what does not matter, and what nothing here knows.

Settling comes before anything is built, so that no setting passes unseen (settings.py). A configuration has several
objects with keys of their own: the text model's inside one around it, RoPE's inside that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .common_settings import GENERATION, OUTER
from .config import SHARED, refuse_quantised, text_part
from .reader import Raw
from .rope_config import FULL, ROPES_BY_KIND, SLIDING, rope_settings, rope_type_of
from .settings import Account, settle

if TYPE_CHECKING:
    from .base import Model

_WHOLE = "ForConditionalGeneration"  # what models are called that have a text model inside


def settle_config(family: type[Model], raw: Raw, generation: Raw, where: str) -> Account:
    """Holds a folder's configuration against the lists of ``family``.

    ``where``: the path of config.json, or "config". Raises ``kv.errors.NotSupportedError`` naming the first key that is
    refused; warns (``kv.errors.IgnoredWarning``) of those that no list names, once for each object.
    """
    whole = any(name.endswith(_WHOLE) for name in family.architectures)
    text = text_part(raw, where) if whole else raw
    refuse_quantised(text, where, family.packed)
    account: Account = {}
    inside = where
    if text is not raw:
        account["config.json"] = settle(raw, OUTER, where)
        inside, text = f"{where}: text_config", {key: text[key] for key in text if key not in SHARED or key not in raw}
    account["config.json: text_config" if inside != where else "config.json"] = settle(text, family.settings, inside)
    for key in ("rope_parameters", "rope_scaling"):
        account.update(_settle_rope(family, text, key, inside))
    if generation:
        account["generation_config.json"] = settle(generation, GENERATION, where)
    return account


def _settle_rope(family: type[Model], text: Raw, key: str, where: str) -> Account:
    value = text.get(key)
    if not isinstance(value, Mapping) or not value:
        return {}
    by_kind = family.ropes_by_kind and key == "rope_parameters"
    if not by_kind and any(isinstance(each, Mapping) for each in value.values()):
        return {}  # refused where it is read
    if not by_kind:
        own = {**rope_settings(family.rope_type(value)), **family.own_rope}
        return {f"config.json: {key}": settle(value, own, f"{where}: {key}")}
    if not {FULL, SLIDING} & value.keys():
        return {}  # refused where it is read
    account = {f"config.json: {key}": settle(value, ROPES_BY_KIND, f"{where}: {key}")}
    for kind in (FULL, SLIDING):
        part = value.get(kind)
        if isinstance(part, Mapping):
            settings = rope_settings(rope_type_of(part))
            account[f"config.json: {key}: {kind}"] = settle(part, settings, f"{where}: {key}: {kind}")
    return account
