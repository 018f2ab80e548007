"""Keys: who has the key finds what was sealed, and nobody else does; and nobody else can choose what is found.

Models compare every row and state that they read with what it has to be, so a wrong byte is an error wherever it is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import fakes
import kvtrie as kv
import make_goldens_sealed as golden
from circles import SOAK
from disk_worker import TierModel, conversations, go_on, make, make_caches, words
from processes import PATIENCE, run_python
from redis_server import RedisServer, running
from test_shared_store import Shelf

KEY, OTHER = bytes(range(32)), bytes(range(100, 132))
KINDS = ("dense", "window", "chunk", "hybrid", "recurrent")
TEXT = words(60, 5)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name != "lock")


def small(folder: Path, keys: Any, **options: Any) -> tuple[kv.PrefixCache, TierModel]:
    caches = [kv.caches.CausalCache([0], 1, 1, 64, dtype="float32", device="host")]
    options = {"fingerprint": "f", "host_bytes": "1MiB", "disk_bytes": "1MiB", **options}
    return kv.PrefixCache(caches, disk=folder, keys=keys, **options), TierModel(caches)


def left_by(folder: Path, keys: Any, namespaces: tuple[str, ...] = ("default",)) -> list[Path]:
    """The files that a conversation of TEXT in each namespace leaves."""
    cache, model = small(folder, keys)
    for namespace in namespaces:
        go_on(cache, model, TEXT, namespace)
    assert cache.flush()
    cache.close()
    return files_of(folder)


def found(folder: Path, keys: Any, namespace: str = "default") -> tuple[int, dict[str, int]]:
    """(tokens reused, files refused) of a cache that opens the folder and goes on with TEXT."""
    cache, model = small(folder, keys)
    refused = cache.stats()["disk"]["refused"]
    reused = go_on(cache, model, [*TEXT, 1], namespace, publish=False).reused
    assert cache.check() == []
    cache.close()
    return reused, refused


# ---- a stranger's reader, as docs/keys.md says -----------------------------------------------------------------------


def fields(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(part)) + part for part in parts)


def hkdf(key: bytes, salt: bytes, *parts: bytes) -> bytes:
    secret = hmac.digest(salt or bytes(32), key, "sha256")
    return hmac.digest(secret, fields(*parts) + b"\1", "sha256")


def unsealed(sealed: bytes, given: bytes, place: str) -> tuple[bytes, bytes]:
    """(content, the namespace's own key). Raises InvalidTag."""
    magic, version, record, size, key_id, salt, masked = struct.unpack_from("<8sIIQ8s32s32s", sealed)
    assert (magic, version) == (b"KVSEAL\0\1", 1)
    assert key_id == hkdf(given, b"", b"kvtrie.seal.id.1")[:8]
    scope = bytes(a ^ b for a, b in zip(masked, hkdf(given, salt, b"kvtrie.seal.scope.1")))
    own = hkdf(given, b"", b"kvtrie.seal.namespace.1", scope)
    key = AESGCM(hkdf(own, salt, b"kvtrie.seal.content.1", sealed[:96], place.encode()))
    content, at = b"", 96
    for number in range(-(-size // record)):
        end = at + min(record, size - len(content)) + 16
        content += key.decrypt(struct.pack("<QI", number, end == len(sealed)), sealed[at:end], None)
        at = end
    assert at == len(sealed)
    return content, own


def test_a_stranger_reads_the_files_of_a_cache_with_its_key(tmp_path: Path) -> None:
    plain, sealed = tmp_path / "plain", tmp_path / "sealed"
    for folder, keys in ((plain, None), (sealed, KEY)):
        cache, model = make("dense", disk=folder, keys=keys)
        for seed in (3, 4):
            go_on(cache, model, words(seed, 700))  # several records
        assert cache.flush()
        cache.close()
    contents = sorted(path.read_bytes() for path in files_of(plain))
    opened = [unsealed(path.read_bytes(), KEY, path.name) for path in files_of(sealed)]
    assert sorted(content for content, _ in opened) == contents
    assert max(map(len, contents)) > 2 * 16384
    for path, (content, own) in zip(files_of(sealed), opened):  # and names them
        names = hkdf(own, b"", b"kvtrie.seal.names.1")
        (found_plain,) = [each for each in files_of(plain) if each.read_bytes() == content]
        digest = bytes.fromhex(found_plain.name[:64])
        assert hmac.new(names, fields(b"kvtrie.seal.file.1", digest), "sha256").hexdigest() == path.name[:64]
    first, second = files_of(sealed)[:2]
    with pytest.raises(InvalidTag):
        unsealed(first.read_bytes(), KEY, second.name)


# ---- restart and page-in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [KEY, {"default": KEY, "other": OTHER}], ids=["one", "each"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_after_a_restart(kind: str, keys: Any, tmp_path: Path) -> None:
    cache, model = make(kind, disk=tmp_path / "folder", keys=keys)
    for namespace, text in conversations():
        go_on(cache, model, text, namespace)
    assert cache.flush()
    wanted = [cache.plan(text, namespace).reusable for namespace, text in conversations()]
    cache.close()
    cache, model = make(kind, disk=tmp_path / "folder", keys=keys)
    assert cache.stats()["disk"]["refused"] == {}
    sessions = [go_on(cache, model, text, namespace, publish=False) for namespace, text in conversations()]
    assert [session.reused for session in sessions] == wanted
    assert {session.tier for session in sessions} == {"disk"}
    assert cache.check() == []
    stats = cache.stats()
    assert stats["checksum_failures"] == 0 and stats["host_bytes"] <= stats["host_cap_bytes"]
    cache.close()


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_paged_out_to_the_disk_and_in_again(kind: str, tmp_path: Path) -> None:
    cache, model = make(kind, disk=tmp_path / "folder", keys=KEY)
    text = words(5, 300)
    go_on(cache, model, text)
    assert cache.page_out(text, to="disk") > 0
    assert cache.plan(text).tier == "disk"
    compared = model.compared
    assert go_on(cache, model, [*text, 1]).tier == "disk"
    assert model.compared > compared
    assert cache.check() == []
    cache.close()


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_saved_sealed_and_opened(kind: str, tmp_path: Path) -> None:
    cache, model = make(kind, keys=KEY)
    text = words(6, 200)
    go_on(cache, model, text)
    cache.save(tmp_path / "saved")
    cache.close()
    assert {path.suffix for path in files_of(tmp_path / "saved")} == {".sealed"}
    options = {"fingerprint": "the tests' weights", "host_bytes": "16MiB", "disk_bytes": "16MiB"}
    for keys, reused in ((KEY, 199), (OTHER, 0), (None, 0)):
        caches = make_caches(kind)
        with kv.PrefixCache.open(tmp_path / "saved", caches, keys=keys, **options) as again:
            assert go_on(again, TierModel(caches), text, publish=False).reused == reused


def test_caps_hold_with_keys_too(tmp_path: Path) -> None:
    cap = 60_000
    cache, model = make("dense", disk=tmp_path / "folder", disk_bytes=cap, keys=KEY)
    for seed in range(12):
        go_on(cache, model, words(seed, 150))
        cache.flush()
        assert sum(path.stat().st_size for path in files_of(tmp_path / "folder")) <= cap
        assert cache.stats()["disk"]["peak_bytes"] <= cap
    assert cache.check() == []
    cache.close()


# ---- who has which key -----------------------------------------------------------------------------------------------


def test_wrong_missing_and_rotated_keys(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (path,) = left_by(folder, KEY)
    before = path.read_bytes()
    assert found(folder, KEY) == (5, {})
    assert found(folder, OTHER) == (0, {"key": 1})
    assert found(folder, None) == (0, {"sealed": 1})
    assert found(folder, {"another": KEY}) == (0, {"key": 1})
    assert found(folder, [OTHER, KEY]) == (5, {})
    assert found(folder, {"default": [OTHER, KEY]}) == (5, {})
    assert files_of(folder) == [path] and path.read_bytes() == before  # left alone by all of them


def test_what_is_written_after_a_rotation_is_of_the_new_key(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    left_by(folder, KEY)
    cache, model = small(folder, [OTHER, KEY])
    go_on(cache, model, words(9, 5))
    cache.save(tmp_path / "saved")
    cache.close()
    assert found(folder, OTHER) == (0, {"key": 1})
    assert sorted(each.read_bytes()[24:32] for each in files_of(folder)) == sorted([KEY_ID, OTHER_ID])
    assert found(tmp_path / "saved", OTHER) == (5, {}), "all that was saved is"


KEY_ID, OTHER_ID = (hkdf(key, b"", b"kvtrie.seal.id.1")[:8] for key in (KEY, OTHER))


def test_files_without_a_seal_are_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (path,) = left_by(folder, None)
    assert found(folder, KEY) == (0, {"sealed": 1})
    assert path.exists()
    assert found(folder, None) == (5, {})


def test_a_namespace_without_a_key_never_leaves_the_process(tmp_path: Path) -> None:
    shelf, folder = Shelf(), tmp_path / "folder"
    text = words(4, 600)
    caches = make_caches("dense")
    options: dict[str, Any] = {"fingerprint": "f", "host_bytes": "16MiB", "disk_bytes": "16MiB"}
    cache = kv.PrefixCache(caches, disk=folder, store=shelf, keys={"a": KEY}, **options)
    model = TierModel(caches)
    go_on(cache, model, text, "b")
    assert cache.flush()
    assert cache.page_out(text, namespace="b", to="store") > 0
    assert go_on(cache, model, [*text, 1], "b").tier == "host"
    cache.page_out(text, namespace="b", to="disk")
    cache.save(tmp_path / "saved")
    assert cache.flush() and files_of(folder) == [] and files_of(tmp_path / "saved") == [] and shelf.values == {}
    assert cache.stats()["keyless_sessions"] == 2
    go_on(cache, model, text, "a")
    assert cache.flush() and files_of(folder) and shelf.values
    assert cache.stats()["keyless_sessions"] == 2
    assert cache.check() == []
    cache.close()


def test_a_host_tier_full_of_a_namespace_without_a_key(tmp_path: Path) -> None:
    caches = make_caches("dense", capacity=256)
    options: dict[str, Any] = {"fingerprint": "f", "host_bytes": 40_000, "disk_bytes": "1MiB"}
    with kv.PrefixCache(caches, disk=tmp_path / "folder", keys={"a": KEY}, **options) as cache:
        model = TierModel(caches)
        for seed in range(8):
            go_on(cache, model, words(seed, 150), "b" if seed % 2 else "a")
            assert cache.flush()
            assert cache.check() == []
        assert go_on(cache, model, [*words(0, 150), 1], "a").reused == 150
    assert all(b"tenant" not in path.read_bytes() for path in files_of(tmp_path / "folder"))


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (b"short", "keys: got 5 bytes, allowed 32"),
        (SECRET_TEXT := "a secret of thirty-two characters", "keys: got a str"),
        ([], "keys: got an empty list"),
        ({}, "keys: got an empty dict"),
        ([KEY, b"x" * 31], r"keys\[1\]: got 31 bytes, allowed 32"),
        ({"a": b"x" * 33}, r"keys\['a'\]: got 33 bytes, allowed 32"),
        ({"a": [KEY, SECRET_TEXT]}, r"keys\['a'\]\[1\]: got a str"),
        ({1: KEY}, "keys: a namespace: got 1"),
        (7, "keys: got a int"),
    ],
)
def test_wrong_keys_are_refused_and_shown_by_nobody(keys: Any, error: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, TypeError), match=error) as raised:
        small(tmp_path / "folder", keys)
    assert "secret" not in str(raised.value) and "xxx" not in str(raised.value)
    assert not (tmp_path / "folder").exists()


def test_nothing_shows_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "folder"
    left_by(folder, KEY)
    with caplog.at_level("DEBUG", "kvtrie"):
        cache, model = small(folder, OTHER)
        go_on(cache, model, TEXT)
        assert cache.flush()
        shown = repr(cache) + str(cache.stats()) + caplog.text + str(cache.nodes()) + cache.tree()
        cache.close()
    assert "key" in caplog.text  # a file was refused
    for key in (KEY, OTHER):
        for form in (key.hex(), repr(key), str(list(key))[1:-1]):
            assert form not in shown


def test_a_bytearray_may_be_overwritten_afterwards(tmp_path: Path) -> None:
    given = bytearray(KEY)
    cache, model = small(tmp_path / "folder", given)
    given[:] = bytes(32)
    go_on(cache, model, TEXT)
    assert cache.flush()
    cache.close()
    assert found(tmp_path / "folder", KEY) == (5, {})


# ---- damage and forgery ----------------------------------------------------------------------------------------------


def test_every_byte_flipped_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (path,) = left_by(folder, KEY)
    content = path.read_bytes()
    faults: dict[str, int] = {}
    for at in [*range(128), *range(128, len(content), 1 if SOAK else 7)]:  # all of the header
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        reused, refused = found(folder, KEY)
        assert (reused, sum(refused.values())) == (0, 1), at
        faults[next(iter(refused))] = faults.get(next(iter(refused)), 0) + 1
        for each in files_of(folder):
            each.unlink()
    print(f"{len(content)} bytes; faults: {faults}")
    assert set(faults) == {"magic", "version", "size", "truncated", "key", "checksum"}
    path.write_bytes(content)
    assert found(folder, KEY) == (5, {})


def test_every_length(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (path,) = left_by(folder, KEY)
    content = path.read_bytes()
    for length in range(0, len(content), 1 if SOAK else 5):
        path.write_bytes(content[:length])
        assert found(folder, KEY) == (0, {"truncated": 1}), length
        assert files_of(folder) == []
    path.write_bytes(content + b"\0")
    assert found(folder, KEY) == (0, {"size": 1})


def test_swapped_files_of_namespaces(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for keys in (KEY, {"a": KEY, "b": OTHER}):
        shutil.rmtree(folder, ignore_errors=True)
        first, second = left_by(folder, keys, ("a", "b"))
        contents = first.read_bytes(), second.read_bytes()
        first.write_bytes(contents[1])
        second.write_bytes(contents[0])
        reused, refused = found(folder, keys, "a")
        assert (reused, refused) == (0, {"checksum": 2})


def test_damage_while_it_is_open(tmp_path: Path) -> None:
    """A record that is changed between opening and reading is a miss, and what is computed again is written again."""
    folder = tmp_path / "folder"
    cache, model = make("dense", disk=folder, keys=KEY)
    text = words(8, 700)
    go_on(cache, model, text)
    assert cache.flush()
    cache.close()
    (path,) = files_of(folder)
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    stat = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    cache, model = make("dense", disk=folder, keys=KEY)
    session = go_on(cache, model, [*text, 1])
    assert (session.reused, session.reason.code) == (0, "checksum")
    assert go_on(cache, model, [*text, 1]).reused == 700
    assert cache.check() == []
    cache.close()


# ---- nothing shows what was said -------------------------------------------------------------------------------------


def test_neither_folder_nor_store_holds_a_byte_of_a_prompt(tmp_path: Path) -> None:
    """Markers that are in both without keys are in neither with them."""
    marker = list(range(70_001, 70_009))
    text = [*words(1, 290), *marker, *words(2, 302)]
    rows = struct.pack("<4f", 1234.5, 2345.25, 3456.75, 4567.5)

    def everything(keys: Any, folder: Path) -> bytes:
        shelf = Shelf()
        caches = [kv.caches.CausalCache(1, 1, 4, 2048, dtype="float32", device="host")]
        options: dict[str, Any] = {"fingerprint": "a fingerprint", "host_bytes": "4MiB", "disk_bytes": "4MiB"}
        with kv.PrefixCache(caches, disk=folder, store=shelf, keys=keys, **options) as cache:
            with cache.begin(text, "a namespace") as session:
                for step in session.prefill():
                    values = [[list(struct.unpack("<4f", rows))]] * len(step.tokens)
                    step.put(0, values, values)
            assert cache.flush()
        stored = [key.encode() + value for key, value in shelf.values.items()]
        return b"".join([*(path.name.encode() + path.read_bytes() for path in files_of(folder)), *stored])

    wanted = [struct.pack("<8i", *marker), rows, b"a namespace", b"a fingerprint"]
    plain, sealed = everything(None, tmp_path / "plain"), everything(KEY, tmp_path / "sealed")
    assert all(part in plain for part in wanted)
    assert not any(part in sealed for part in [*wanted, KEY])
    names = set(re.findall(rb"[0-9a-f]{64}", plain)) & set(re.findall(rb"[0-9a-f]{64}", sealed))
    assert names == set()


# ---- the store -------------------------------------------------------------------------------------------------------

TOKENS = [(7 * i) % 1000 for i in range(900)]


def shared(store: Any, keys: Any) -> kv.PrefixCache:
    return fakes.make_cache(
        device="host",
        store=store,
        store_deadline=None,
        keys=keys,
        fingerprint="weights",
        host_bytes="8MiB",
        capacity=4096,
    )


OTHER_PROCESS = """
import json, sys
import fakes
url, tokens, keys = sys.argv[1], json.loads(sys.argv[2]), bytes.fromhex(sys.argv[3]) or None
with fakes.make_cache(device="host", store=url, store_deadline=None, keys=keys, fingerprint="weights",
                      host_bytes="8MiB", capacity=4096) as cache:
    session = fakes.run(cache, tokens, fakes.CodingModel())
    assert cache.flush() and cache.check() == []
    stats = cache.stats()["store"]
    print(json.dumps([session.reused, stats["faults"], stats["removes"]]))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running(tmp_path_factory.mktemp("redis")) as started:
        yield started


@pytest.mark.ci
def test_two_processes_with_and_without_the_key_on_one_server(server: RedisServer) -> None:
    def process(key: str, tokens: list[int]) -> Any:
        done = run_python("-c", OTHER_PROCESS, server.url(f"timeout={PATIENCE}"), json.dumps(tokens), key)
        assert (done.returncode, done.stderr) == (0, "")
        return json.loads(done.stdout)

    assert process(KEY.hex(), TOKENS) == [0, {}, 0]
    assert process(KEY.hex(), [*TOKENS, 1]) == [900, {}, 0]
    assert process(OTHER.hex(), [*TOKENS, 1]) == [0, {}, 0]
    assert process("", [*TOKENS, 1]) == [0, {}, 0]
    assert process(KEY.hex(), [*TOKENS, 2]) == [900, {}, 0]  # and none of them harmed what it cannot read


def test_who_can_write_to_the_store_cannot_choose_what_is_read() -> None:
    """Every value under every other's name, with digests as anybody can make them, is a miss that goes."""

    def forged(key: str, content: bytes) -> bytes:
        head = b"kvtrie.v" + struct.pack("<IIQQ", 1, 1, len(content), 0)
        digest = hashlib.sha256(fields(b"kvtrie.shared.value.1", key.encode(), head, content)).digest()
        return head + digest + content

    original, plain = Shelf(), Shelf()
    for shelf, keys in ((original, KEY), (plain, None)):
        with shared(shelf, keys) as cache:
            fakes.run(cache, TOKENS, fakes.CodingModel())
            assert cache.flush()
    assert set(original.values).isdisjoint(plain.values)
    for key in original.values:
        assert forged(key, original.values[key][64:]) == original.values[key]  # so the forgery below is a good one
    foreign = [value[64:] for value in plain.values.values()]
    ours = [value[64:] for value in original.values.values()]
    for content in [*ours, *foreign] if SOAK else [ours[0], ours[-1], foreign[0]]:
        shelf = Shelf()
        shelf.values = {
            key: value if value[64:] == content else forged(key, content) for key, value in original.values.items()
        }
        with shared(shelf, KEY) as cache:
            model = fakes.CodingModel()  # compares every row that it reads
            fakes.run(cache, [*TOKENS, 1], model)
            assert cache.check() == []
            faults = cache.stats()["store"]["faults"]
            assert set(faults) == ({"sealed"} if content in foreign else {"checksum"})


def test_threads_share_a_store_with_keys() -> None:
    shelf = Shelf()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with shared(shelf, {"default": KEY, "b": OTHER}) as cache:
                for turn in range(3):
                    tokens = [*TOKENS[: 300 + 100 * turn], number]
                    fakes.run(cache, tokens, fakes.CodingModel(), namespace="b" if number % 2 else "default")
                assert cache.flush() and cache.check() == []
                assert cache.stats()["store"]["faults"] == {}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []


# ---- forks -----------------------------------------------------------------------------------------------------------


def test_a_forked_process_seals_as_well(tmp_path: Path) -> None:
    """Salts differ: random numbers are the kernel's, and no state of theirs is copied."""
    text = """
import os, sys
from pathlib import Path
import test_sealed
folder = Path(sys.argv[1])
test_sealed.left_by(folder / "before", test_sealed.KEY)
child = os.fork()
test_sealed.left_by(folder / ("child" if child == 0 else "parent"), test_sealed.KEY)
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = run_python("-c", text, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    salts = {path.read_bytes()[32:64] for name in ("before", "child", "parent") for path in files_of(tmp_path / name)}
    assert len(salts) == 3
    assert found(tmp_path / "child", KEY) == (5, {})


LEAVES = """
import sys
import kvtrie as kv
import test_sealed
cache, model = test_sealed.make("dense", disk=sys.argv[1], keys=test_sealed.KEY)
for seed in range(8):
    test_sealed.go_on(cache, model, test_sealed.words(seed, 700))
if sys.argv[2] == "closing":
    cache.close()
"""


@pytest.mark.parametrize("last", ["closing", "leaving it"])
def test_the_interpreter_ends_well_while_files_are_sealed(last: str, tmp_path: Path) -> None:
    """libcrypto ends with the process, too: what is still being sealed then is whole, or not there."""
    for number in range(4 if SOAK else 1):
        folder = tmp_path / str(number)
        done = run_python("-c", LEAVES, folder, last)
        assert (done.returncode, done.stderr) == (0, "")
        cache, _ = make("dense", disk=folder, keys=KEY)
        assert cache.stats()["disk"]["refused"] == {}
        assert last == "leaving it" or cache.stats()["disk"]["files"] == 8
        cache.close()


# ---- permissions -----------------------------------------------------------------------------------------------------

NOBODY = 65534

# argv: uid, folder. What a cache on the folder says, as that user with a generous umask.
AS_USER = """
import json, os, stat, sys
import kvtrie as kv
user, folder = int(sys.argv[1]), sys.argv[2]
os.umask(0)
if user:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
caches = [kv.caches.CausalCache([0], 1, 1, 64, dtype="float32", device="host")]
try:
    with kv.PrefixCache(caches, fingerprint="f", host_bytes="1MiB", disk=folder, disk_bytes="1MiB") as cache:
        with cache.begin([1, 2, 3]) as session:
            for step in session.prefill():
                step.put(0, *[[[[1.0]]] * len(step.tokens)] * 2)
        assert cache.flush()
    modes = {oct(stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)) for name in os.listdir(folder)}
    print(json.dumps([oct(stat.S_IMODE(os.stat(folder).st_mode)), sorted(modes)]))
except kv.errors.FormatError as error:
    print(json.dumps(str(error)))
"""


def as_user(user: int, folder: Path) -> Any:
    done = run_python("-c", AS_USER, user, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can reach, where pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="kvtrie-sealed-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_in_which_others_may_write_is_refused(tmp_path: Path) -> None:
    for mode in (0o770, 0o702):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder").chmod(mode)
        with pytest.raises(kv.errors.FormatError, match="in which other users may write"):
            small(tmp_path / "folder", None)


@pytest.mark.ci
@pytest.mark.parametrize("user", [0, NOBODY])
def test_folders_in_which_others_may_write_are_refused(user: int, public: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    mine = as_user(user, public / "mine")
    assert mine == ["0o700", ["0o600"]], "whatever the umask"
    refused = "in which other users may write, allowed a folder of our own with mode 0700"
    for mode in (0o777, 0o1777, 0o770, 0o720, 0o702):
        (public / "mine").chmod(mode)
        assert refused in as_user(user, public / "mine"), oct(mode)
    for mode in (0o755, 0o700):
        (public / "mine").chmod(mode)
        assert as_user(user, public / "mine") == [oct(mode), ["0o600"]]
    theirs = public / "theirs"
    theirs.mkdir(0o700)
    os.chown(theirs, 12345, 12345)
    assert "allowed" in as_user(user, theirs), "its owner may write"
    theirs.chmod(0o755)
    assert refused in as_user(user, theirs)
    (public / "link").symlink_to(public / "mine")
    assert as_user(user, public / "link") == ["0o700", ["0o600"]], "a link is what it leads to"
    (public / "link").unlink()
    (public / "link").symlink_to(theirs)
    assert refused in as_user(user, public / "link")


def test_a_folder_of_root_is_no_place_for_others(public: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be several users")
    (public / "roots").mkdir(0o755)
    assert "Permission denied" in as_user(NOBODY, public / "roots")


# ---- looking in ------------------------------------------------------------------------------------------------------


def inspected(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    from kvtrie.cli import main

    code = main(["inspect", *map(str, arguments)])
    shown = capsys.readouterr()
    return code, shown.out + shown.err


def test_inspect_with_and_without_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, key_file = tmp_path / "folder", tmp_path / "keys"
    (path,) = left_by(folder, KEY)
    code, shown = inspected(capsys, folder)
    key_id = hkdf(KEY, b"", b"kvtrie.seal.id.1")[:8].hex()
    assert code == 0 and f"sealed, key {key_id}" in shown and "1 sealed, without a key here" in shown
    assert "default" not in shown and "[0,5)" not in shown
    for text, fault in (
        (KEY.hex(), ""),
        (f"{OTHER.hex()}\n{KEY.hex()}\n", ""),
        (json.dumps({"default": KEY.hex()}), ""),
        (json.dumps({"default": [OTHER.hex(), KEY.hex()]}), ""),
        (OTHER.hex(), "key"),
        (json.dumps({"another": KEY.hex()}), "key"),
    ):
        key_file.touch(0o600)
        key_file.write_text(text)
        code, shown = inspected(capsys, folder, "--key-file", key_file)
        assert code == 0 and KEY.hex() not in shown
        assert ("[0,5)" in shown) == (fault == ""), text
        assert (f"key, key {key_id}" in shown) == (fault == "key")
        _, shown = inspected(capsys, folder, "--json", "--key-file", key_file)
        (snapshot,) = json.loads(shown)["snapshots"]
        assert (snapshot["fault"], snapshot["key"]) == (fault, key_id)
    path.write_bytes(path.read_bytes()[:-1])
    code, shown = inspected(capsys, folder)
    assert code == 1 and "truncated" in shown


def test_key_files_are_refused_by_name_and_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    left_by(tmp_path / "folder", KEY)
    key_file = tmp_path / "keys"
    for text, mode, error in (
        (KEY.hex(), 0o644, "got mode 0644, allowed 0600"),
        (KEY.hex()[:-2], 0o600, "got 31 bytes, allowed 32"),
        ("not hexadecimal", 0o600, "got no keys"),
        ("{", 0o600, "got no keys"),
        (json.dumps({"a": 7}), 0o600, "got no keys"),
        ("", 0o600, "got an empty list"),
    ):
        key_file.write_text(text)
        key_file.chmod(mode)
        code, shown = inspected(capsys, tmp_path / "folder", "--key-file", key_file)
        assert code == 1 and error in shown and KEY.hex()[:20] not in shown, text
    assert "No such file" in inspected(capsys, tmp_path / "folder", "--key-file", tmp_path / "none")[1]


# ---- what earlier versions sealed ------------------------------------------------------------------------------------


def test_the_golden_folder_opens_for_ever(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(golden.FOLDER, folder)
    folder.chmod(0o700)
    cache, model = golden.open_golden(folder, golden.KEYS)
    assert cache.stats()["disk"]["refused"] == {}
    for namespace, text in golden.TEXTS:
        session = go_on(cache, model, [*text, 1], namespace, publish=False)
        assert (session.reused, session.tier) == (len(text), "disk")
    assert model.compared > 0 and cache.check() == []
    cache.close()
    cache, _ = golden.open_golden(folder, OTHER)
    assert cache.stats()["disk"]["refused"] == {"key": len(files_of(folder))}
    cache.close()
