"""What earlier versions of the formats wrote, kept for ever: folders of the disk tier, and values of a shared store.

    goldens/folders/version-N/NAME     files of the disk tier; NAME.json: what each conversation is to give
    goldens/stores/version-N/NAME      values of a store, `values.json`: key -> base64; NAME.json as above

    python golden_folders.py                writes what is missing for the current version; what is there stays
    python golden_folders.py write NAME DIR    what today's version writes: files of NAME go to DIR
    python golden_folders.py send NAME DIR     what it sends to a store: DIR/values.json

Each in a process of its own, since ids of media, which count from a process's beginning, are in the files.

`TierModel` of disk_worker.py says what each row and state has to be, so neither its numbers nor what is made here may
change: the files that are kept would not name themselves any more. Whoever needs another model gives it another name.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Union

import kvtrie as kv
from disk_worker import TierModel
from fakes import DictStore
from processes import run_python

GOLDENS = Path(__file__).with_name("goldens")
FOLDERS, STORES = GOLDENS / "folders", GOLDENS / "stores"
VERSION = 1  # of docs/format.md and docs/store.md; a new one gets folders of its own
MADE = ("dense-float32", "dense-float16", "window-float32", "chunk-float32", "recurrent-float16", "hybrid-float32")
SHARED = ("dense-float32", "hybrid-float32")

FINGERPRINT = "golden weights"
CAPACITY, SPACING, WINDOW, CHUNK = 2048, 32, 20, 50

Item = Union[int, dict[str, Any]]  # a token, or an image: its name and the positions it takes


class GoldenModel(TierModel):
    """A `TierModel` to which an image is its name: ids of media are valid in one process only."""

    def __init__(self, caches: Sequence[Any]) -> None:
        super().__init__(caches)
        self.images: dict[int, int] = {}  # id -> what stands for it in codes

    def tokens(self, items: Sequence[Item]) -> list[int]:
        found: list[int] = []
        for item in items:
            if isinstance(item, int):
                found.append(item)
                continue
            ids = [int(each) for each in kv.media(item["image"], item["positions"])]
            self.images[ids[0]] = 1_000_000 + sum(item["image"].encode())
            found += ids
        return found

    def named(self, tokens: Sequence[int]) -> Sequence[int]:
        return [self.images.get(int(token), int(token)) for token in tokens]


def run_of(first: int, count: int) -> list[Item]:
    """Tokens that no two runs have in common, but for those that are asked for twice."""
    return [(first * 131 + index * 37) % 997 for index in range(count)]


def conversations(name: str, trunk_length: int = 70) -> list[dict[str, Any]]:
    """Namespace, items and atomic spans of each: one trunk, branches around a section's border, an image, a group."""
    trunk = run_of(1, trunk_length)
    texts = [trunk[:at] + run_of(2 + number, 20) for number, at in enumerate((63, 64, 65, trunk_length))]
    made: list[dict[str, Any]] = [{"namespace": "default", "items": text} for text in texts]
    made.append({"namespace": "tenant \u00e9/2", "items": texts[-1]})
    if name.startswith("dense"):
        image = {"image": "sha256:a picture", "positions": 9}
        made.append({"namespace": "default", "items": [*run_of(9, 70), image, *run_of(10, 5)]})
        made.append({"namespace": "default", "items": run_of(11, 70), "atomic": [[12, 25]]})
    return made


def shared_conversations(name: str) -> list[dict[str, Any]]:
    """The same with a trunk of more than a block of 256 tokens."""
    return conversations(name, 270)


def make_caches(kind: str, dtype: str) -> list[Any]:
    """The caches of a small model of `kind`, some of whose layers are not in order."""

    def causal(layers: list[int], **sees: Any) -> Any:
        return kv.caches.CausalCache(layers, 1, 2, CAPACITY, dtype=dtype, device="host", **sees)

    def recurrent(layers: list[int]) -> Any:
        return kv.caches.RecurrentCache(layers, 2, 2, 1, 2, 2, 128, dtype=dtype, device="host")

    caches = {
        "dense": lambda: [causal([2, 0])],
        "window": lambda: [causal([1]), causal([0], window=WINDOW)],
        "chunk": lambda: [causal([1]), causal([0], chunk=CHUNK)],
        "recurrent": lambda: [recurrent([0, 1])],
        "hybrid": lambda: [causal([5]), causal([4], window=WINDOW), causal([3], chunk=CHUNK), recurrent([0])],
    }
    return caches[kind]()


def open_cache(name: str, **options: Any) -> tuple[kv.PrefixCache, GoldenModel]:
    kind, dtype = name.split("-")
    caches = make_caches(kind, dtype)
    options = {"fingerprint": FINGERPRINT, "host_bytes": "16MiB", "checkpoint_every": SPACING, **options}
    return kv.PrefixCache(caches, **options), GoldenModel(caches)


def compute(cache: kv.PrefixCache, model: GoldenModel, conversation: dict[str, Any], *more: int, **options: Any) -> Any:
    """The closed session of a conversation and some more tokens; the model compares every row that is reused."""
    tokens = [*model.tokens(conversation["items"]), *more]
    spans = [(begin, end) for begin, end in conversation.get("atomic", [])]
    with cache.begin(tokens, conversation["namespace"], atomic=spans or None, **options) as session:
        for step in session.prefill(chunk=64):
            model(step)
    return session


def write(name: str, folder: Path) -> None:
    """What today's version writes of the conversations."""
    cache, model = open_cache(name, disk=folder, disk_bytes="64MiB")
    for conversation in conversations(name):
        compute(cache, model, conversation)
    assert cache.flush()
    cache.close()


def send(name: str) -> dict[str, bytes]:
    """What today's version sends of the conversations to a store."""
    store = DictStore()
    cache, model = open_cache(name, store=store)
    for conversation in shared_conversations(name):
        compute(cache, model, conversation)
        assert cache.flush()  # one after the other, so that what goes into an index is always the same
    cache.close()
    return store.values


def go_on(name: str, asked: Sequence[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """What is reused of each conversation that goes on by one token in a cache that knows nothing else."""
    found = []
    for conversation in asked:
        cache, model = open_cache(name, **options)
        session = compute(cache, model, conversation, 998, publish=False)
        assert cache.check() == []
        found.append({**conversation, "reused": session.reused, "tier": session.tier})
        cache.close()
    return found


def read_values(folder: Path) -> dict[str, bytes]:
    encoded = json.loads((folder / "values.json").read_text(encoding="utf-8"))
    return {key: base64.b64decode(value) for key, value in encoded.items()}


def kept(root: Path) -> Iterator[Path]:
    """Every golden folder of every version."""
    return (path.with_suffix("") for path in sorted(root.glob("version-*/*.json")))


def write_values(folder: Path, values: dict[str, bytes]) -> None:
    encoded = {key: base64.b64encode(value).decode() for key, value in sorted(values.items())}
    _write_json(folder / "values.json", encoded)


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n", encoding="utf-8")


def in_another_process(command: str, name: str, folder: Path) -> None:
    ended = run_python(Path(__file__), command, name, folder)
    assert ended.returncode == 0, ended.stderr


def _make_folder(name: str, folder: Path) -> None:
    in_another_process("write", name, folder)
    expected = go_on(name, conversations(name), disk=folder, disk_bytes="64MiB")
    (folder / "lock").unlink()
    _write_json(folder.with_suffix(".json"), expected)


def _make_store(name: str, folder: Path) -> None:
    in_another_process("send", name, folder)
    expected = go_on(name, shared_conversations(name), store=DictStore(read_values(folder)))
    _write_json(folder.with_suffix(".json"), expected)


def main() -> None:
    for root, names, make in ((FOLDERS, MADE, _make_folder), (STORES, SHARED, _make_store)):
        for name in names:
            folder = root / f"version-{VERSION}" / name
            if folder.exists():
                print(f"{folder.relative_to(GOLDENS)} is there")
                continue
            folder.parent.mkdir(parents=True, exist_ok=True)
            make(name, folder)
            size = sum(path.stat().st_size for path in folder.iterdir())
            print(f"{folder.relative_to(GOLDENS)}: {len(list(folder.iterdir()))} files, {size} bytes")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        command, made, place = sys.argv[1:]
        if command == "write":
            write(made, Path(place))
        else:
            Path(place).mkdir()
            write_values(Path(place), send(made))
