"""Writes docs/settings.md from the lists that the code goes by.

    .venv/bin/python tests/lint/settings_page.py            # the page anew
    .venv/bin/python tests/lint/settings_page.py --check    # 1 if the page says something else than the lists

Needs the module. tests/python/test_config_account.py fails where the page is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

from kvtrie.models import adapter
from kvtrie.models.common_settings import COMMON, OUTER
from kvtrie.models.families import FAMILIES
from kvtrie.models.rope_config import KEYS, ROPES_BY_KIND, rope_settings
from kvtrie.models.settings import Settings
from kvtrie.models.settings_table import markdown
from kvtrie.models.stored import FREQUENCIES

PAGE = ROOT / "docs" / "settings.md"


def page() -> str:
    families = {name: family.settings for name, family in FAMILIES.items()}
    around = {key: setting for key, setting in OUTER.items() if COMMON.get(key) != setting}
    ropes = {kind: _read(rope_settings(kind)) for kind in ("default", *KEYS)}
    return f"""# Keys of model files

What becomes of each key that a [family](own_family.md) knows; [models.md](models.md) says what *read*, *neutral* and
*refused* mean.

## config.json

Or its `text_config`. A family is called by its `model_type`; where a key has several rows, each is of other families.

{markdown(families, "family")}

## Around a text model

Of a configuration that has `text_config`: the shared keys above, and these.

{markdown({"": around})}

## RoPE

Keys of `rope_parameters` or `rope_scaling`, by its `rope_type`; with other types they are neutral, as are {_rest()}.
In Gemma 3 each kind of layers has its own, under {_named(ROPES_BY_KIND)}; `truncate` beside them is refused.

{markdown(ropes, "rope_type")}

## generation_config.json

`bos_token_id` and `eos_token_id` are read, before those of `config.json`. How tokens are chosen, the caller says.

## adapter_config.json

{markdown({"": adapter.SETTINGS})}

## Stored tensors that are not used

{ignored()}
"""


def _read(settings: Settings) -> Settings:
    return {key: setting for key, setting in settings.items() if setting.fate == "read"}


def _named(settings: Settings) -> str:
    return " and ".join(f"`{key}`" for key in _read(settings))


def _rest() -> str:
    """Keys that no type reads."""
    every = [rope_settings(kind) for kind in KEYS]
    return " and ".join(f"`{key}`" for key in every[0] if all(each[key].fate == "neutral" for each in every))


def ignored() -> str:
    patterns: dict[str, list[str]] = {}
    for family in FAMILIES.values():
        for pattern, why in family.ignored.items():
            patterns[why] = list(dict.fromkeys([*patterns.get(why, []), f"`{pattern}`"]))
    rows = [f"| {', '.join(names)} | {why} |" for why, names in patterns.items()]
    compared = f"| `{FREQUENCIES}` | RoPE's frequencies: compared with the configuration's, a difference is told |"
    return "\n".join(["| tensor | why |", "| --- | --- |", compared, *rows])


def main() -> int:
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
