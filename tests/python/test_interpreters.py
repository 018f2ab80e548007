"""Interpreters that the library does not work in refuse it by name: subinterpreters, and those without a GIL."""

from __future__ import annotations

import importlib.util

import pytest

from processes import run_python

SUBINTERPRETER = """
import sys
import _testcapi
import fakes

cache = fakes.make_cache(64, device="host")
code = '''
import ctypes, sys
sys.path[:0] = {path!r}
try:
    import kvtrie
    print("imported", flush=True)
except ImportError as error:
    print(error, flush=True)
there = ctypes.cast({address}, ctypes.py_object).value
for call in (there.stats, lambda: there.begin([1]), lambda: there.closed, lambda: type(there)([])):
    try:
        print(call(), flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
'''.format(path=sys.path, address=id(cache))
print(_testcapi.run_in_subinterp(code), flush=True)
print(cache.check(), cache.stats()["begins"])
"""


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="needs CPython's _testcapi")
def test_a_subinterpreter_is_refused_by_name() -> None:
    done = run_python("-c", SUBINTERPRETER)
    assert (done.returncode, done.stderr) == (0, "")
    imported, *calls, ended, after = done.stdout.splitlines()
    allowed = "the main interpreter of a process"
    assert imported == f"[kvtrie] interpreter: got a subinterpreter, allowed {allowed}: start a process for each"
    refused = f"[kvtrie] interpreter: got a call in a subinterpreter, allowed {allowed}"
    assert calls[:3] == [f"RuntimeError {refused}"] * 3
    assert calls[3].startswith(("RuntimeError", "AttributeError", "ImportError"))  # it runs Python code of ours first
    assert (ended, after) == ("0", "[] 0")


WITHOUT_GIL = """
import sys
sys._is_gil_enabled = lambda: {enabled}
try:
    import kvtrie
    print("imported")
except ImportError as error:
    print(error)
print("kvtrie._core" in sys.modules)
"""


@pytest.mark.parametrize("enabled", [True, False])
def test_an_interpreter_without_the_gil_is_refused_by_name(enabled: bool) -> None:
    """Where the module would be loaded, Python turned the GIL on for all that runs in the process."""
    done = run_python("-c", WITHOUT_GIL.format(enabled=enabled))
    assert (done.returncode, done.stderr) == (0, "")
    if enabled:
        assert done.stdout == "imported\nTrue\n"
    else:
        assert done.stdout.startswith("[kvtrie] interpreter: got one that runs without the GIL, allowed one with it:")
        assert done.stdout.endswith("\nFalse\n")
