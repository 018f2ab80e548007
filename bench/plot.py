"""Draws a bench's plot again from its JSON file: python bench/plot.py docs/results/NAME.json ..."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from report import plot

for name in sys.argv[1:]:
    file = Path(name)
    plot(json.loads(file.read_text()), importlib.import_module(f"bench_{file.stem}").draw, file.with_suffix(".svg"))
