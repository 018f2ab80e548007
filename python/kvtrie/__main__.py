"""``python -m kvtrie``: see ``kvtrie.cli``."""

from __future__ import annotations

import sys

from kvtrie.cli import main

if __name__ == "__main__":
    sys.exit(main())
