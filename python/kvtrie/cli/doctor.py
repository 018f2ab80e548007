"""Check this machine: OpenCL, devices, libraries, kernels; say what is missing and what to install."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import os
import time
from collections.abc import Iterator
from typing import TextIO

import kvtrie as kv
from kvtrie import _checks, _health, _kept, _listing, _probe
from kvtrie import _folders as folders
from kvtrie import _processors as processors
from kvtrie._health import MISSING, NOTE, OK, Finding
from kvtrie.viz.words import format_bytes

_REPORT = "report this with the output of `python -m kvtrie devices`"
PACKAGES = ("safetensors", "tokenizers", "jinja2", "tqdm", "gguf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="do not run kernels on the devices")


def run(arguments: argparse.Namespace, out: TextIO) -> int:
    return _health.write(examine(quick=arguments.quick), out)


def examine(*, quick: bool = False) -> Iterator[Finding]:
    """Every finding, in the order in which a fault in one explains faults in the next."""
    _listing.prepare()
    yield from _health.basics()
    yield from _python_packages()
    yield _processors()
    yield from _places()
    yield _program_cache()
    found = kv.devices()
    for name, how in _listing.left_out().items():
        yield Finding(NOTE, "OpenCL driver", f"{name}: ends the process while it is listed ({how}), and is left out")
    if not found:
        yield Finding(MISSING, "OpenCL device", "none", *_health.driver_advice())
    for device in found:
        detail = f"{device.name} ({device.kind}, {format_bytes(device.global_bytes)})"
        yield Finding(OK, "OpenCL device", detail)
        if not quick:
            yield from _survives(device)
            yield _vectors(device)
            yield _integer_units(device)
            yield _self_test(device)


def _python_packages() -> Iterator[Finding]:
    for name in PACKAGES:
        try:
            yield Finding(OK, f"python: {name}", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(
                NOTE, f"python: {name}", "not installed: needed for checkpoints", "pip install 'kvtrie[models]'"
            )


def _processors() -> Finding:
    granted, there = processors.granted(), os.cpu_count() or 1
    limits = [] if granted.bound == there else [f"bound to {granted.bound}"]
    limits += [] if granted.quota is None else [f"the control group grants {granted.quota:g}"]
    why = f" ({', '.join(limits)})" if limits else ""
    return Finding(OK, "processors", f"{granted.threads} of {there}{why}")


def _places() -> Iterator[Finding]:
    """Where state and programs go where nobody names a folder."""
    if folders.home() is None:
        advice = "set HOME to a folder that you can write to"
        yield Finding(NOTE, "home", f"none: user {os.getuid()} has no entry, and HOME is none", advice)
    base = folders.cache_base()
    why = "there is no home for it" if base is None else folders.why_not(base / "kvtrie" / "serve")
    if base is None or why:
        advice = "serve --disk FOLDER, or set XDG_CACHE_HOME to a folder that you can write to"
        yield Finding(NOTE, "state of serve", f"nothing is kept after the end: {why}", advice)
    else:
        yield Finding(OK, "state of serve", str(base / "kvtrie" / "serve"))


def _program_cache() -> Finding:
    folder = _kept.cache_folder()
    if not folder:
        advice = "set KVTRIE_CACHE_DIR to a folder that only you can write to"
        return Finding(NOTE, "kernel cache", "none: kernels are compiled again in every process", advice)
    sizes = []
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # a compiler's passing file
                sizes.append(os.lstat(os.path.join(place, name)).st_size)
    return Finding(OK, "kernel cache", f"{folder}: {len(sizes)} files, {format_bytes(sum(sizes))}")


def _survives(device: kv.Device) -> Iterator[Finding]:
    """A child process's findings about the driver; nothing if all is well."""
    try:
        about = (device.index, device.platform, device.name, device.driver, device.version)
        for kernel in _probe.unusable_kernels(*about):
            yield Finding(NOTE, "driver", f"ends the process over kernel {kernel}, which is not used")
    except kv.Error as error:
        yield Finding(MISSING, "driver", str(error), "choose another device or driver: KVTRIE_DEVICE=NAME")


def _vectors(device: kv.Device) -> Finding:
    """How wide the kernels' vectors are: what the driver's compiler aims at, which need not be what the device has."""
    try:
        width = kv.ops.vector_width(device)
    except kv.Error as error:
        return Finding(MISSING, "vectors", str(error), _REPORT)
    return Finding(OK, "vectors", f"{width} floats")


def _integer_units(device: kv.Device) -> Finding:
    """They decide how products of quantised weights round activations, and so which bits come out."""
    try:
        units = kv.ops.integer_units(device)
    except kv.Error as error:
        return Finding(MISSING, "integer units", str(error), _REPORT)
    what = (
        "none: products of quantised weights are in float32"
        if units == "none"
        else f"{units}, with precisions auto and fast"
    )
    return Finding(OK, "integer units", what)


def _self_test(device: kv.Device) -> Finding:
    """Runs the kernels of a transformer block against numpy; the kernels also test themselves at first use."""
    begin = time.perf_counter()
    try:
        errors = {name: _checks.error_of(check, device) for name, check in _checks.CHECKS.items()}
        worst = max(errors.items(), key=lambda item: item[1])
    except kv.Error as error:
        return Finding(MISSING, "kernels", str(error), _REPORT)
    detail = f"largest relative error {worst[1]:.1e} ({worst[0]}), {time.perf_counter() - begin:.1f} s"
    if worst[1] > 1e-4:
        return Finding(MISSING, "kernels", detail, "this driver computes wrong results: choose another device")
    return Finding(OK, "kernels", detail)
