"""Which folder or file a path means: itself, or a model of the local Hugging Face cache by its name."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import FormatError, NotSupportedError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")  # organisation/model
_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


def find_model(path: str) -> Path:
    """A folder with a ``config.json``, or a file. Raises ``kv.errors.FormatError`` saying what there is instead."""
    found = Path(path)
    if not found.exists():
        if _NAME.fullmatch(path) is None:
            raise FormatError(
                f"[models.load] path: got {path!r}, allowed a checkpoint folder, a GGUF file or organisation/model"
            )
        found = _in_cache(path)
    if not found.is_dir() or (found / "config.json").exists():
        return found
    files = sorted(file for file in found.glob("*.gguf") if _LATER_PART.search(file.name) is None)
    if len(files) > 1:
        names = ", ".join(file.name for file in files)
        raise FormatError(f"[models.load] {found}: got {len(files)} GGUF files, allowed the path of one: {names}")
    if files and (found / "adapter_config.json").exists():
        raise NotSupportedError(
            f"[models.load] {found}: got adapter_config.json beside {files[0].name}, allowed a folder of Hugging Face "
            "as the base of an adapter, or the path of the GGUF file"
        )
    return files[0] if files else found


def _in_cache(name: str) -> Path:
    """The snapshot that ``main`` was when it was downloaded. Nothing is downloaded here."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ImportError("names of models need huggingface_hub: pip install 'kvtrie[models]'") from error
    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        raise FormatError(
            f"[models.load] path: got {name!r}, which is neither a path nor in the local hub cache; "
            f"`hf download {name}` puts it there"
        ) from None
