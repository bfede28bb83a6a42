# SPDX-License-Identifier: Apache-2.0
"""The processor on which a benchmark runs, and its class: what docs/performance.md sorts figures by."""

import os
import pathlib

# By what dense layers can be multiplied with; the first that fits.
CLASSES = (("AMX", ("amx_bf16", "amx_tile")), ("AVX-512 BF16", ("avx512_bf16",)), ("AVX-512", ("avx512f", "avx512bw")),
           ("AVX2", ("avx2", "fma")), ("x86-64 without AVX2", ()))


def class_of(flags):
    """`flags`: as /proc/cpuinfo has them."""
    return next(name for name, needed in CLASSES if set(needed) <= set(flags))


def describe(cpuinfo, cores):
    """Of /proc/cpuinfo's text."""
    fields = dict(line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line)
    fields = {key.strip(): value.strip() for key, value in fields.items()}
    family = ", ".join(f"{word} {fields[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in fields)
    name = fields.get("model name", "unknown processor")
    return f"class {class_of(fields.get('flags', '').split())}: {name}{f' ({family})' if family else ''}, {cores} cores"


def machine_class():
    """Of this machine: "AVX2", ..."""
    return describe(pathlib.Path("/proc/cpuinfo").read_text(), os.cpu_count()).removeprefix("class ").split(":")[0]


def machine():
    return describe(pathlib.Path("/proc/cpuinfo").read_text(), os.cpu_count())


if __name__ == "__main__":
    print(f"machine {machine()}", flush=True)
