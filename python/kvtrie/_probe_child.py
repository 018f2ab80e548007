"""The child of a probe: it opens the device and runs every check on it; see ``_probe.py``."""

from __future__ import annotations

import contextlib

from . import _checks, _core, _listing, _probe
from .errors import Error


def main() -> None:
    """The child."""
    _listing.trust()
    with _probe.trial() as told:
        device = _core.devices()[told["index"]]
        device._open_for_trial(told["journal"], told["unusable"])
        for check in _checks.CHECKS.values():
            with contextlib.suppress(Error):  # a kernel that is wrong or left out: whoever needs it is told
                _checks.error_of(check, device)
