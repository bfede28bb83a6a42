#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The gateway against its own /openapi.json, by schemathesis: good and bad requests of every endpoint."""

import json
import subprocess
import sys
import urllib.request
import unittest
from pathlib import Path

from harness import Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("schemathesis==4.32.5")

MODEL = "smollm2-135m-instruct"
EXAMPLES = 25  # Of each endpoint and kind.
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance",
          "response_schema_conformance", "negative_data_rejection", "unsupported_method")


class GatewaySchemaTest(unittest.TestCase):
    def test_every_endpoint_keeps_its_word(self):
        require_model(self)
        # Answers are short, since the whole context is.
        with Cluster(gateway={"listen": "127.0.0.1:0"},
                     limits={"sequence_tokens_max": 48}) as cluster:
            url = f"http://{cluster.gateway}"
            with urllib.request.urlopen(f"{url}/openapi.json") as response:
                schema = json.load(response)
            # Or nothing but 404 would be seen.
            for name in ("CompletionRequest", "ChatCompletionRequest"):
                schema["components"]["schemas"][name]["properties"]["model"] = {"const": MODEL}
            file = cluster.directory / "openapi.json"
            file.write_text(json.dumps(schema))
            command = [str(Path(sys.executable).parent / "schemathesis"), "run", str(file),
                       "--url", url, "--checks", ",".join(CHECKS), "--seed", "1",
                       "--generation-deterministic",
                       "--max-examples", str(EXAMPLES), "--phases", "coverage,fuzzing",
                       "--request-timeout", "60", "--no-color", "--warnings", "off",
                       "--suppress-health-check", "all"]
            result = subprocess.run(command, capture_output=True, text=True,
                                    cwd=cluster.directory)
            self.assertEqual(result.returncode, 0, result.stdout[-8000:] + result.stderr[-2000:] + cluster.log("gateway"))
            print(result.stdout[-400:])


if __name__ == "__main__":
    unittest.main()
