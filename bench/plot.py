"""Draws a bench's plot again from its JSON file: python bench/plot.py docs/results/LEVEL/NAME.json ..."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from report import plot

for name in sys.argv[1:]:
    content = json.loads(Path(name).read_text())
    plot(content, importlib.import_module(content["bench"]).draw, Path(name).with_suffix(".svg"))
