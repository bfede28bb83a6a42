# SPDX-License-Identifier: Apache-2.0
"""Rules over #include lines: the layer order, third-party headers, header guards, conditionals."""

import re

from source_tree import Finding

# What each folder may include besides itself and common/. Longest prefix wins. `proto` stands for
# the generated headers lamina/v1/*.pb.h, which rule third-party restricts to some files.
_BELOW_CORE = {"model", "plan", "cost", "policy"}
_BELOW_CONTROL = {"plan", "proto", "telemetry"}
_BELOW_NODES = _BELOW_CONTROL | {"model", "kernels", "transport", "control", "config", "daemon"}
_BELOW_DAEMONS = _BELOW_NODES | _BELOW_CORE
_DAEMONS = {"coordinator", "compute_node", "memory_node"}
LAYERS = {
    "common": set(),
    "proto": set(),
    "kernels": set(),
    "transport": set(),
    "model": set(),
    "plan": set(),
    "config": {"plan"},
    "telemetry": {"plan"},
    "daemon": {"config", "telemetry"},
    "cost": {"model", "plan"},
    "policy": {"model", "plan", "cost"},
    "coordinator/core": _BELOW_CORE,
    "planner": _BELOW_CORE | {"config", "coordinator/core"},
    "control": _BELOW_CONTROL,
    "coordinator": _BELOW_DAEMONS | {"coordinator/core"},
    "compute_node": _BELOW_NODES | {"policy"},
    "memory_node": _BELOW_NODES,
    "client": _BELOW_DAEMONS | _DAEMONS | {"planner"},
    "gateway": _BELOW_DAEMONS | _DAEMONS | {"client"},
}
# Not layers: they may look at everything, and nothing of ours looks at them.
OUTSIDE = ("tests", "bench")

# Header prefix, and where it may stand: a folder ("a/b/") or a pattern of file paths.
_RPC_FILES = r"proto/|client/|(.*/)?main\.cc|.*_service\.(h|cc)"
THIRD_PARTY = [
    (r"(ucp|uct|ucs|ucm)/", r"transport/ucx/"),
    (r"(infiniband|rdma)/", r"transport/verbs/"),
    (r"(oneapi/)?dnnl", r"kernels/cpu/"),
    (r"hwy/", r"kernels/cpu/"),
    (r"(cuda|cublas|curand|cooperative_groups|nvtx|nvml|mma\.h)", r"kernels/cuda/"),
    (r"(grpc|grpcpp|google/protobuf)/|.*\.pb\.h$", _RPC_FILES),
    (r"utf8proc", r"model/(tokenizer|jinja)/"),
    (r"xxhash", r"memory_node/"),
    (r"(sentencepiece|pcre2)", r"model/tokenizer/"),
    (r"boost/graph/", r"model/splitter\.cc$"),
    (r"prometheus/", r"daemon/metrics_page\.cc$"),
    (r"boost/(asio|beast)/", r"daemon/(http_server\.cc|acceptors\.(cc|h))$|gateway/"),
    (r"boost/system/", r"gateway/"),
    (r"openssl/", r"gateway/|common/(cluster_secret|tls)\.cc$"),
]

# The one header that may look at the platform.
PORT_HEADER = "common/port.h"

_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
_CONDITIONAL = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif|else|endif)\b\s*(.*?)\s*$")
_TOGGLE = re.compile(r"^defined\s*\(?\w+\)?\s*==\s*defined\s*\(?HWY_TARGET_TOGGLE\)?$")


def includes(file):
    """Yields (line number, header) of a C++ file; what stands in a comment does not count."""
    code = file.code.split("\n")
    for number, line in enumerate(file.lines, start=1):
        match = _INCLUDE.match(line)
        if match and code[number - 1].lstrip().startswith("#"):
            yield number, match.group(2)


def layer_of(path):
    parts = path.split("/")[:-1]
    for length in range(len(parts), 0, -1):
        prefix = "/".join(parts[:length])
        if prefix in LAYERS:
            return prefix
    return parts[0] if parts else ""


def is_outside(path):
    return path.split("/")[0] in OUTSIDE


def check_layers(tree):
    for file in filter(lambda f: f.is_cpp() and not is_outside(f.path), tree.files):
        layer = layer_of(file.path)
        if layer not in LAYERS:
            yield Finding("layers", file.path, 1, f"folder '{layer}' is not in the layer table")
            continue
        if file.name == "main.cc":
            continue
        for number, header in includes(file):
            target = "proto" if header.startswith("lamina/v1/") else layer_of(header)
            if is_outside(header):
                yield Finding("layers", file.path, number, f"{header}: only tests include tests")
            elif target in LAYERS and target not in LAYERS[layer] | {layer, "common"}:
                yield Finding(
                    "layers", file.path, number, f"{layer} must not include {target} ({header})"
                )


def check_third_party(tree):
    for file in filter(lambda f: f.is_cpp() and not is_outside(f.path), tree.files):
        for number, header in includes(file):
            for pattern, allowed in THIRD_PARTY:
                if re.match(pattern, header) and not re.match(allowed, file.path):
                    yield Finding(
                        "third-party", file.path, number, f"<{header}> belongs in {allowed}"
                    )


def _is_toggled(file):
    return "HWY_TARGET_TOGGLE" in file.text


def check_pragma_once(tree):
    for file in tree.files:
        if file.suffix in (".h", ".cuh") and not _is_toggled(file):
            if not re.search(r"^#pragma once$", file.code, re.MULTILINE):
                yield Finding("pragma-once", file.path, 1, "a header needs '#pragma once'")


# So that building a.cc shows that a.h leans on nobody; check_headers compiles only the headers without one.
def check_own_header_first(tree):
    headers = {file.path for file in tree.files if file.suffix == ".h"}
    for file in tree.files:
        own = file.path.removesuffix(".cc") + ".h"
        if file.suffix != ".cc" or own not in headers:
            continue
        number, first = next(includes(file), (1, "nothing"))
        if first != own:
            yield Finding("own-header-first", file.path, number, f"includes {first} before {own}")


def _allowed_conditional(file, keyword, condition, enclosing):
    if file.path == PORT_HEADER:
        return True
    highway = file.path.startswith("kernels/cpu/") or is_outside(file.path)
    if keyword == "if":
        return highway and (condition == "HWY_ONCE" or bool(_TOGGLE.match(condition)))
    return keyword == "ifdef" and bool(enclosing) and bool(_TOGGLE.match(enclosing[-1]))


def check_conditionals(tree):
    for file in filter(lambda f: f.is_cpp(), tree.files):
        enclosing = []
        for number, line in enumerate(file.code.split("\n"), start=1):
            match = _CONDITIONAL.match(line)
            if not match:
                continue
            keyword, condition = match.groups()
            if keyword == "endif":
                enclosing = enclosing[:-1]
            elif keyword.startswith("if"):
                if not _allowed_conditional(file, keyword, condition, enclosing):
                    message = f"#{keyword} {condition}: choose by file, by link or by table"
                    yield Finding("conditionals", file.path, number, message)
                enclosing.append(condition)


RULES = {
    "layers": check_layers,
    "third-party": check_third_party,
    "pragma-once": check_pragma_once,
    "own-header-first": check_own_header_first,
    "conditionals": check_conditionals,
}
