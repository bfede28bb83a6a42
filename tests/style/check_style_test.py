#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one violation after another in a clean temporary tree and sees that each is found."""

import os
import tempfile
import unittest
from pathlib import Path

import check_style

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
HEADER = SPDX + "#pragma once\n"

# A tree that keeps every rule, with the exceptions that rules grant.
CLEAN = {
    "CMakeLists.txt": "# The project.\n",
    "README.md": "# Name\n\n## How it works\n\n[here](#how-it-works) [d](docs/a.md#part-one)"
    " [web](https://example.org/x) `[code](gone.md)`\n",
    "docs/a.md": "# A\n\n## Part one\n\n```\n[fenced](gone.md)\n```\n[up](../README.md)\n",
    "common/clock.h": HEADER,
    "common/port.h": HEADER + "#ifdef __linux__\n#endif\n",
    "kernels/attention.h": HEADER + '#include "common/clock.h"\n',
    "kernels/cpu/attention.cc": SPDX
    + '#include "hwy/foreach_target.h"\n#include "kernels/attention.h"\n'
    + "#if HWY_ONCE\n#endif  // HWY_ONCE\n",
    "kernels/cpu/simd-inl.h": SPDX
    + "#if defined(SIMD_INL) == defined(HWY_TARGET_TOGGLE)\n#ifdef SIMD_INL\n#undef SIMD_INL\n"
    + "#else\n#define SIMD_INL\n#endif\n#endif\n",
    "transport/ucx/ucx_transport.cc": SPDX + "#include <ucp/api/ucp.h>\n",
    "model/splitter.cc": SPDX + "#include <boost/graph/adjacency_list.hpp>\n",
    "coordinator/core/scheduler.cc": SPDX
    + '#include "common/clock.h"\n// std::unordered_map and rand() in a comment, \'#if 0\' too.\n'
    + 'const char* kText = "time( getenv(";\nint n = 1\'000;\n',
    "coordinator/core/sums.cc": SPDX
    + 'const char* kText = "// Of a text";  // Offsets of rows, as many\n// of the same kind.\n',
    "coordinator/cluster_service.cc": SPDX
    + '#include <grpcpp/grpcpp.h>\n\n#include "coordinator/core/scheduler.h"\n'
    + '#include "lamina/v1/cluster.pb.h"\n',
    "compute_node/main.cc": SPDX + '#include <cstdlib>\nchar* x = std::getenv("HOME");\n',
    "daemon/daemon.cc": SPDX + 'auto* policy = std::getenv("OMP_WAIT_POLICY");\n',
    "tests/unit/kernels/attention_test.cc": SPDX + "#include <dnnl.h>\n#include <ucp/api/ucp.h>\n",
    "tests/unit/kernels/CMakeLists.txt": "lamina_cc_test(NAME x)\n",
    "tests/fidelity/goldens/raw.txt": "trailing \t \nno newline, and /" + "tmp/x",
    "deploy/run.sh": "#!/bin/bash\n# SPDX-License-Identifier: Apache-2.0\n"
    + 'cd "${TMPDIR:-/tmp}"\n# TODO(anna, ADR 0007): stop here.\n',
}

# rule -> trees: what is added to the clean tree, one violation each.
PLANTED = {
    "layers": [
        {"kernels/x.cc": SPDX + '#include "transport/transport.h"\n'},
        {"kernels/x.cc": SPDX + '#include "model/graph.h"\n'},
        {"model/x.cc": SPDX + '#include "kernels/attention.h"\n'},
        {"transport/x.cc": SPDX + '#include "model/graph.h"\n'},
        {"common/x.cc": SPDX + '#include "kernels/attention.h"\n'},
        {"common/x.cc": SPDX + '#include "lamina/v1/cluster.pb.h"\n'},
        {"policy/x.cc": SPDX + '#include "transport/transport.h"\n'},
        {"coordinator/core/x.cc": SPDX + '#include "coordinator/cluster_service.h"\n'},
        {"coordinator/core/x.cc": SPDX + '#include "transport/transport.h"\n'},
        {"planner/x.cc": SPDX + '#include "coordinator/cluster_service.h"\n'},
        {"memory_node/x.cc": SPDX + '#include "compute_node/executor.h"\n'},
        {"memory_node/x.cc": SPDX + '#include "coordinator/core/scheduler.h"\n'},
        {"compute_node/x.cc": SPDX + '#include "coordinator/core/membership.h"\n'},
        {"control/x.cc": SPDX + '#include "coordinator/core/scheduler.h"\n'},
        {"client/x.cc": SPDX + '#include "coordinator/core/scheduler.h"\n'},
        {"plan/x.cc": SPDX + '#include "cost/rates.h"\n'},
        {"config/x.cc": SPDX + '#include "cost/rates.h"\n'},
        {"telemetry/x.cc": SPDX + '#include "control/inbox.h"\n'},
        {"daemon/x.cc": SPDX + '#include "control/inbox.h"\n'},
        {"control/x.cc": SPDX + '#include "memory_node/memory_node.h"\n'},
        {"coordinator/core/x.cc": SPDX + '#include "control/inbox.h"\n'},
        {"coordinator/x.cc": SPDX + '#include "gateway/server.h"\n'},
        {"model/x.cc": SPDX + '#include "tests/support/gguf_writer.h"\n'},
        {"misc/x.cc": SPDX},
    ],
    "third-party": [
        {"transport/x.cc": SPDX + "#include <ucp/api/ucp.h>\n"},
        {"transport/ucx/x.cc": SPDX + "#include <infiniband/verbs.h>\n"},
        {"kernels/x.cc": SPDX + '#include "oneapi/dnnl/dnnl.hpp"\n'},
        {"kernels/reference/x.cc": SPDX + '#include "hwy/highway.h"\n'},
        {"transport/shm/x.cc": SPDX + "#include <cuda_runtime.h>\n"},
        {"coordinator/rpc.cc": SPDX + "#include <grpcpp/grpcpp.h>\n"},
        {"memory_node/x.cc": SPDX + '#include "lamina/v1/cluster.pb.h"\n'},
        {"compute_node/x.cc": SPDX + "#include <google/protobuf/message.h>\n"},
        {"model/x.cc": SPDX + "#include <sentencepiece_processor.h>\n"},
        {"common/x.cc": SPDX + "#include <pcre2.h>\n"},
        {"common/x.cc": SPDX + "#include <openssl/hmac.h>\n"},
        {"model/graph.cc": SPDX + "#include <boost/graph/adjacency_list.hpp>\n"},
    ],
    "own-header-first": [
        {"common/clock.cc": SPDX + '#include <cstdint>\n\n#include "common/clock.h"\n'},
        {"common/clock.cc": SPDX + "int n = 1;\n"},
    ],
    "pragma-once": [{"model/x.h": SPDX}, {"model/x.h": SPDX + "// #pragma once\n"}],
    "conditionals": [
        {"model/x.cc": SPDX + "#ifdef __AVX512F__\n#endif\n"},
        {"kernels/cpu/x.cc": SPDX + "#if HWY_ONCE\n#ifndef NDEBUG\n#endif\n#endif\n"},
        {"model/x.cc": SPDX + "#if HWY_ONCE\n#endif\n"},
        {"kernels/cpu/x.cc": SPDX + "#  if 0\n#endif\n"},
        {"tests/unit/model/x_test.cc": SPDX + "#if 0\n#endif\n"},
    ],
    "class-size": [
        {"model/x.h": HEADER + "class Big {\n" + "".join(f"  int Method{i}() const;\n" for i in range(36)) + "};\n"},
        {
            "model/x.h": HEADER + "class Spread {\n  void First();\n  void Second();\n  void Third();\n};\n",
            "model/a.cc": SPDX + "void Spread::First() {}\n",
            "model/b.cc": SPDX + "void Spread::Second() {}\n",
            "model/c.cc": SPDX + "void Spread::Third() {}\n",
        },
    ],
    "licence": [
        {"model/x.cc": "int x;\n"},
        {"deploy/x.py": "print()\n"},
        {"proto/x.proto": 'syntax = "proto3";\n'},
    ],
    "environment": [{"model/x.cc": SPDX + 'auto* home = std::getenv("HOME");\n'}],
    "purity": [
        {"coordinator/core/x.cc": SPDX + "auto now = std::chrono::steady_clock::now();\n"},
        {"coordinator/core/x.cc": SPDX + "auto now = RealClock().Now();\n"},
        {"coordinator/core/x.cc": SPDX + "auto now = time(nullptr);\n"},
        {"coordinator/core/x.cc": SPDX + "int x = rand();\n"},
        {"coordinator/core/x.cc": SPDX + "std::mt19937 engine;\n"},
        {"coordinator/core/x.cc": SPDX + "#include <thread>\n"},
        {"coordinator/core/x.cc": SPDX + "absl::Mutex mu;\n"},
        {"coordinator/core/x.cc": SPDX + "absl::flat_hash_map<int, int> map;\n"},
        {"coordinator/core/x.cc": SPDX + "std::unordered_map<int, int> map;\n"},
        {"coordinator/core/x.cc": SPDX + "std::this_thread::sleep_for(delay);\n"},
        {"coordinator/core/x.cc": SPDX + "#include <fstream>\n"},
        {"policy/x.cc": SPDX + "#include <sys/socket.h>\n"},
        {"cost/x.cc": SPDX + "std::random_device device;\n"},
    ],
    "notes": [
        {"model/x.cc": SPDX + "// TODO: later.\n"},
        {"docs/b.md": "FIXME this page\n"},
        {"model/x.cc": SPDX + "// TODO(anna): later.\n"},
    ],
    "fragments": [
        {"model/x.h": HEADER + "int rows = 0;  // Of one step.\n"},
        {"model/x.cc": SPDX + "// The same for columns.\nint Columns();\n"},
        {"kernels/x.cu": SPDX + "/// Of a row, what its tile sees.\nint Seen();\n"},
        {"bench/x.cc": SPDX + "// Counts rows.\n// Of each tile, the first.\nint First();\n"},
    ],
    "links": [
        {"docs/b.md": "[gone](gone.md)\n"},
        {"docs/b.md": "![gone](../images/gone.svg)\n"},
        {"docs/b.md": "[no heading](a.md#part-two)\n"},
    ],
    "white-space": [
        {"model/x.cc": SPDX + "\tint x;\n"},
        {"docs/b.md": "space \n"},
        {"cmake/x.cmake": "set(x 1)"},
    ],
    "length": [{"model/x.cc": SPDX + "int x;\n" * 600}],
    "executables": [{"model/x.cc": (SPDX, True)}, {"deploy/x.sh": (CLEAN["deploy/run.sh"], False)}],
    "machine-paths": [
        {"docs/b.md": "see /" + "work/x\n"},
        {"model/x.cc": SPDX + 'const char* kPath = "/' + 'root/model.gguf";\n'},
        {"tests/unit/x_test.cc": SPDX + 'const char* kPath = "/' + 'tmp/model.gguf";\n'},
        {"deploy/b.txt": "/home/anna/x\n"},
    ],
    "file-names": [{"model/BigGraph.cc": SPDX}, {"model/big-graph.h": HEADER}],
    "folder-sentence": [{"model/CMakeLists.txt": "add_subdirectory(gguf)\n"}],
}


def write_tree(root, files):
    for path, content in files.items():
        text, executable = content if isinstance(content, tuple) else (content, False)
        full = Path(root, path)
        full.parent.mkdir(parents=True, exist_ok=True)
        full.write_text(text, encoding="utf-8")
        executable = executable or path == "deploy/run.sh"
        os.chmod(full, 0o755 if executable else 0o644)


class CheckStyleTest(unittest.TestCase):
    def test_a_clean_tree_has_no_findings(self):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, CLEAN)
            self.assertEqual([str(f) for f in check_style.findings(root)], [])

    def test_every_rule_has_a_planted_violation(self):
        self.assertEqual(set(PLANTED), set(check_style.RULES))

    def test_every_planted_violation_is_found_by_its_rule_alone(self):
        for rule, trees in PLANTED.items():
            for planted in trees:
                with self.subTest(rule=rule, planted=planted):
                    with tempfile.TemporaryDirectory() as root:
                        write_tree(root, {**CLEAN, **planted})
                        found = check_style.findings(root)
                    self.assertEqual({f.path for f in found}, set(planted))
                    expected = {rule}
                    if "v1/" in str(planted):  # Generated headers are ruled twice, on purpose.
                        expected = {"layers", "third-party"} & {rule, *(f.rule for f in found)}
                    self.assertEqual({f.rule for f in found}, expected)
                    self.assertFalse(any(f.warning for f in found))

    def test_long_files_are_warned_about_before_they_fail(self):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, {**CLEAN, "model/x.cc": SPDX + "int x;\n" * 450})
            found = check_style.findings(root)
        self.assertEqual([(f.rule, f.warning) for f in found], [("length", True)])

    def test_build_outputs_are_not_read(self):
        with tempfile.TemporaryDirectory() as root:
            write_tree(root, {**CLEAN, "build/release/x.cc": "\tint x;"})
            self.assertEqual(check_style.findings(root), [])


if __name__ == "__main__":
    unittest.main()
