"""The snapshot format as a stranger reads it: the worked example of docs/format.md, by `struct` and `safetensors`."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
FIXED = struct.Struct("<8sIIQiIIIIII")
DTYPES = {0: "float32", 1: "float16", 2: "bfloat16"}
ROLES = {1: "cells", 2: "window", 3: "state"}


@pytest.fixture(scope="module")
def example() -> bytes:
    """The bytes of the worked example; the C++ tests hold the encoder to the same ones."""
    lines = re.findall(r"^([0-9a-f]{8})  ([0-9a-f]+) +(.*)$", TEXT, flags=re.M)
    data = b""
    for offset, digits, shown in lines:
        assert int(offset, 16) == len(data)
        row = bytes.fromhex(digits)
        assert re.sub(rb"[^ -~]", b".", row).decode() == shown
        data += row
    assert data
    return data


class Reader:
    """Takes fields from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def fields(self, layout: str) -> tuple[Any, ...]:
        """The fields of one `struct` layout without its byte order."""
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def text(self, count: int) -> bytes:
        """The next `count` bytes."""
        self.at += count
        return self.data[self.at - count : self.at]


def read_media(reader: Reader) -> dict[str, Any]:
    token, count, group, size = reader.fields("iiII")
    return {"id": token, "count": count, "group": group, "digest": reader.text(size)}


def read_cache(reader: Reader) -> dict[str, Any]:
    kind, dtype, numbers = reader.fields("III")
    return {"kind": kind, "dtype": DTYPES[dtype], "shape": list(reader.fields(f"{numbers}q"))}


def read_image(reader: Reader) -> dict[str, Any]:
    role, cache, first, cells, count = reader.fields("IIiII")
    sections = [reader.fields("QQ") for _ in range(count)]
    return {"role": ROLES[role], "cache": cache, "first": first, "cells": cells, "sections": sections}


def read_header(tensor: bytes) -> dict[str, Any]:
    """Every field of the header tensor, as docs/format.md lays them out."""
    magic, version, point, size, start, fingerprint, namespace, tokens, media, caches, images = FIXED.unpack_from(
        tensor
    )
    assert magic == b"KVTRIE\0\1" and size == len(tensor)
    reader = Reader(tensor)
    reader.at = FIXED.size
    header = {
        "version": version,
        "point": point,
        "start": start,
        "fingerprint": reader.text(fingerprint),
        "namespace": reader.text(namespace),
        "tokens": list(reader.fields(f"{tokens}i")),
        "media": [read_media(reader) for _ in range(media)],
        "caches": [read_cache(reader) for _ in range(caches)],
        "images": [read_image(reader) for _ in range(images)],
    }
    reader.fields("Q")  # the checksum
    assert reader.at == len(tensor)
    return header


def without_checksums(images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**image, "sections": [size for size, _ in image["sections"]]} for image in images]


def parts(data: bytes) -> tuple[str, bytes, bytes]:
    """The JSON with its padding, the header tensor, and the images."""
    (length,) = struct.unpack_from("<Q", data)
    text = data[8 : 8 + length].decode("ascii")
    begin, end = json.loads(text)["kvtrie.header"]["data_offsets"]
    return text, data[8 + length + begin : 8 + length + end], data[8 + length + end :]


def test_header_of_the_example_by_struct(example: bytes) -> None:
    text, tensor, images = parts(example)
    assert (len(example) - len(images)) % 64 == 0
    assert text.rstrip(" ").endswith("}}")
    header = read_header(tensor)
    header["images"] = without_checksums(header["images"])
    assert header == {
        "version": 1,
        "point": 2,
        "start": 2,
        "fingerprint": b"tiny-7",
        "namespace": b"team-a",
        "tokens": [1, 15, -7, -7, 42],
        "media": [{"id": -7, "count": 2, "group": 0, "digest": b"sha256:cat"}],
        "caches": [
            {"kind": 1, "dtype": "float16", "shape": [1, 1, 2, 2, 0, 0, 0, 0]},
            {"kind": 2, "dtype": "float32", "shape": [1, 1, 2, 1, 1, 2, 1]},
        ],
        "images": [
            {"role": "cells", "cache": 0, "first": 2, "cells": 3, "sections": [12, 12]},
            {"role": "state", "cache": 1, "first": 0, "cells": 0, "sections": [8, 8]},
        ],
    }


def test_images_of_the_example_by_struct(example: bytes) -> None:
    _, _, images = parts(example)
    keys = np.array([[0, 0.5], [1, 1.5], [2, 2.5]], np.float16)
    assert images[:12] == keys.tobytes()
    assert images[12:24] == (-keys).tobytes()
    assert struct.unpack("<4f", images[24:]) == (0.25, 0.75, 1.5, -2.5)


def test_json_says_what_the_header_says(example: bytes) -> None:
    text, tensor, images = parts(example)
    parsed = json.loads(text)
    assert text.rstrip(" ") == json.dumps(parsed, separators=(",", ":"))
    header = read_header(tensor)
    assert parsed.pop("__metadata__") == {
        "format": "kvtrie-snapshot",
        "version": "1",
        "fingerprint": header["fingerprint"].decode(),
        "tokens": str(len(header["tokens"])),
        "start": str(header["start"]),
        "images": str(len(header["images"])),
    }
    at = len(tensor)
    expected = {"kvtrie.header": {"dtype": "U8", "shape": [at], "data_offsets": [0, at]}}
    for image in header["images"]:
        name = f"{image['role']}.{image['cache']}" + (f".{image['first']}" if image["cells"] else "")
        size = sum(size for size, _ in image["sections"])
        expected[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    assert parsed == expected and list(parsed) == list(expected)
    assert at == len(tensor) + len(images)


def test_example_opens_as_safetensors(example: bytes, tmp_path: Path) -> None:
    path = tmp_path / "example.kvtrie"
    path.write_bytes(example)
    _, tensor, images = parts(example)
    with safe_open(path, framework="numpy") as file:
        assert file.metadata()["format"] == "kvtrie-snapshot"
        assert sorted(file.keys()) == ["cells.0.2", "kvtrie.header", "state.1"]
        assert file.get_tensor("kvtrie.header").tobytes() == tensor
    loaded = load(example)
    assert all(array.dtype == np.uint8 and array.ndim == 1 for array in loaded.values())
    assert loaded["cells.0.2"].tobytes() + loaded["state.1"].tobytes() == images
