"""JSON as Python has it: what came in and was checked, and what goes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]
JsonView = Mapping[str, Any]  # that nobody changes
