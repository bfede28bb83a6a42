# SPDX-License-Identifier: Apache-2.0
"""Clients during an attack: requests over gRPC whose answers must be those of an undisturbed run."""

import json
import subprocess
import urllib.request

ANSWER_SECONDS = 180  # For a request on a busy machine, everything recomputed several times.
STATUS_SECONDS = 30


class Stream:
    """One `lamina generate` that runs during the test. `finish()` returns its token ids."""

    def __init__(self, test, cluster, prompt="Once upon a time", tokens=60):
        self._test = test
        self._cluster = cluster
        self._process = cluster.popen("generate", "--prompt", prompt, "--max-tokens", str(tokens), "--ignore-eos",
                                      "--temperature", "0", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        test.addCleanup(self._end)

    def finish(self):
        try:
            out, error = self._process.communicate(timeout=ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._test.fail(f"a request hangs\n{self._cluster.logs()}")
        self._test.assertEqual(self._process.returncode, 0, f"a request is lost: {error}\n{self._cluster.logs()}")
        return json.loads(out)["token_ids"]

    def _end(self):
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def health(cluster):
    """The status code of the gateway's /health."""
    with urllib.request.urlopen(f"http://{cluster.gateway}/health", timeout=STATUS_SECONDS) as answer:
        return answer.status


def post(cluster, path, body, seconds=ANSWER_SECONDS):
    """The answer, as an object, of a POST to the gateway of JSON, or of an object."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = urllib.request.Request(f"http://{cluster.gateway}{path}", text.encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return json.loads(answer.read())
