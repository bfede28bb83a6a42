#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Schemathesis against a running gateway: everything that /openapi.json promises, and what it forbids.

It makes requests that fit the description and requests that do not, and checks that there is no
server error, that each status, type and body is one of those described, and that what does not fit
is refused. That all that fits is taken is not checked: limits that depend on the model (token ids,
the context) and on several fields at once are not part of the description. The seed is fixed.
"""

import json
import subprocess
import sys
import unittest
import urllib.request
from pathlib import Path

from harness import MODEL, Cluster, require_model, run_in_environment

if __name__ == "__main__":
    run_in_environment("schemathesis==4.32.5")

VOCABULARY = 49152
EXAMPLES = 20  # Of each operation, when fuzzing.
RUN_SECONDS = 35  # After which it begins nothing new.
SECONDS = 240
WORKERS = "1"  # Python 3.11 counts the depth of syntax trees for all threads together, and fails when two build one.


class GatewaySchemaTest(unittest.TestCase):
    def test_the_gateway_does_what_its_description_says(self):
        require_model(self)
        # Short sequences: a request may ask for as many tokens as fit.
        with Cluster(gateway={"listen": "127.0.0.1:0", "choices_max": 2},
                     limits={"sequence_tokens_max": 48}) as cluster:
            url = f"http://{cluster.gateway}"
            command = [str(Path(sys.executable).parent / "st"), "run", self.description(cluster, url),
                       "--url", url, "--max-examples", str(EXAMPLES), "--seed", "6",
                       "--phases", "examples,coverage,fuzzing", "--no-color", "--continue-on-failure",
                       "--workers", WORKERS, "--max-time", str(RUN_SECONDS),
                       "--exclude-checks", "positive_data_acceptance",
                       "--generation-database", "none", "--request-timeout", "60"]
            result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS,
                                    cwd=cluster.directory)
            print(result.stdout[-6000:])
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr + cluster.logs())

    def description(self, cluster, url):
        """The file with /openapi.json, narrowed to what the served model is called and knows."""
        with urllib.request.urlopen(f"{url}/openapi.json", timeout=60) as answer:
            described = json.load(answer)
        schemas = described["components"]["schemas"]
        for request in (schemas["CompletionRequest"], schemas["ChatCompletionRequest"]):
            request["properties"]["model"] = {"const": MODEL.stem}
        for request in (schemas["DetokenizeRequest"], *schemas["TokenizeRequest"]["oneOf"]):
            request["properties"]["model"] = {"enum": [MODEL.stem, None]}
        schemas["TokenId"]["maximum"] = VOCABULARY - 1
        path = cluster.directory / "openapi.json"
        path.write_text(json.dumps(described))
        return str(path)


if __name__ == "__main__":
    unittest.main()
