"""Why a test may be skipped: by what this machine, or another package, is or lacks, never by what kvtrie is.

A test that asks kvtrie whether it has something is skipped for ever when that gets another name. So every reason has to
be one of these, or the test fails.
"""

from __future__ import annotations

import re

from circles import CIRCLE

REASONS = (
    r"needs (fork|CPython's _testcapi|systemd-analyze|httptools|PoCL on an x86-64 processor)",
    r"needs root( and setpriv|, to become another user)",
    r"a malloc for glibc is compiled and loaded",
    r"needs memory that host and device share",
    r"only (root can be several users|PoCL's compiler reads a header for each program)",
    r"(strace|unshare|anywidget|the gguf package|selenium, chromium or chromium-driver) is not installed",
    r"neither redis-server nor valkey-server is installed",
    r"no (mount|mount namespace): .*",
    r"(only root|this machine) makes (no )?network namespaces.*",
    r"there is no \w+: install iproute2",
    r"a tmpfs cannot be mounted here: .*",
    r".* was not built",
    r"runs programs of this machine, which is no x86-64",
    r"products are not routed on this device",
    r"transformers has no pieces for models without attention",
    r"(they come with|there is no llama\.cpp:) \./dev peers",
    r"KVTRIE_\w+ names no file.*",
    r"other drivers compile a kernel with its program, in no time that matters",
    r"steps are replayed on CPU devices( only)?",
    r"this processor is below \w+",
    r"this PoCL compiles for one processor only",
    r"no OpenCL driver that an \.icd file names",
    r"this module has been built to open the loader itself",
    r"pyopencl does not see the driver that kvtrie uses",
    r"the package lies where others cannot read it",
    r"the address does not matter where memory is not shared",
)
# Of packages: a Python for which there is none has no tests of them. CI's has all.
PACKAGES = r"could not import .*"


def known(reason: str) -> bool:
    """Whether a test may be skipped for this: ``reason`` as pytest reports it."""
    allowed = REASONS if CIRCLE == "ci" else (*REASONS, PACKAGES)
    return any(re.fullmatch(each, reason.removeprefix("Skipped: "), re.DOTALL) for each in allowed)
