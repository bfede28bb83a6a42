#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gRPC over TLS: certificates of `cluster.sh certificates`, and everybody who comes with the wrong ones."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

import harness

TOKEN = "the-secret-of-tls"
WAIT_SECONDS = 60


def openssl(*words):
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)


class TlsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)
        temporary = tempfile.TemporaryDirectory(prefix="lamina-tls-")
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.tls = self.make("state")

    def certificates(self, state, **keys):
        """What `cluster.sh certificates` says."""
        file = self.folder / f"{state}.yaml"
        file.write_text(harness.cluster_file(**keys))
        return subprocess.run([str(harness.REPO / "deploy/cluster.sh"), "certificates", "--cluster", str(file), "--state",
                               str(self.folder / state), "--bin", str(harness.BIN)], capture_output=True, text=True)

    def make(self, state, **keys):
        """Certificates of a CA of their own."""
        made = self.certificates(state, **keys)
        self.assertEqual(made.returncode, 0, made.stderr)
        folder = self.folder / state / "tls"
        self.assertIn(f"tls: {{ca: '{folder}/ca.pem', certificate: '{folder}/{{host}}.pem', key: '{folder}/{{host}}.key'}}\n", made.stdout)
        self.assertEqual((folder / "localhost.key").stat().st_mode & 0o777, 0o600)
        self.assertEqual((folder / "ca.key").stat().st_mode & 0o777, 0o600)
        return folder

    def test_nodes_that_come_later_are_named_and_the_line_is_printed_once(self):
        again = self.certificates("state", memory_nodes=3, tls=self.keys())
        self.assertEqual((again.returncode, again.stdout), (0, ""), again.stderr)
        self.assertIn(f"{self.tls}/localhost.pem is there already, and not good for m2: remove it, and make another\n", again.stderr)

    def keys(self, folder=None, certificate=None):
        folder = folder or self.tls
        certificate = certificate or "localhost"
        return {"ca": f"{folder}/ca.pem", "certificate": f"{folder}/{certificate}.pem", "key": f"{folder}/{certificate}.key"}

    def issue(self, name, *names, days=1):
        """Another certificate of the cluster's CA; one that is over with `days` 0."""
        work = self.tls / f"{name}.csr"
        (self.tls / "extensions").write_text("subjectAltName=" + ",".join(names) + "\n")
        openssl("req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", self.tls / f"{name}.key",
                "-out", work, "-subj", f"/CN={name}")
        if days > 0:
            openssl("x509", "-req", "-in", work, "-CA", self.tls / "ca.pem", "-CAkey", self.tls / "ca.key", "-days", days, "-extfile",
                    self.tls / "extensions", "-out", self.tls / f"{name}.pem")
            return
        database = self.folder / "database"
        database.mkdir()
        (database / "index").touch()
        (database / "serial").write_text("01\n")
        (database / "conf").write_text(f"[ca]\ndefault_ca=a\n[a]\ndatabase={database}/index\nserial={database}/serial\nnew_certs_dir="
                                       f"{database}\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n")
        openssl("ca", "-batch", "-config", database / "conf", "-cert", self.tls / "ca.pem", "-keyfile", self.tls / "ca.key", "-in", work,
                "-out", self.tls / f"{name}.pem", "-startdate", "20200101000000Z", "-enddate", "20200102000000Z", "-extfile",
                self.tls / "extensions", "-notext")

    def generate(self, cluster, **keys):
        return harness.run("generate", "--prompt", "Once", "--max-tokens", "4", "--json", server=cluster.server, **keys)

    def assert_doctor_reaches(self, cluster):
        """By the file's own CA, at an address for which no certificate could be: that of all."""
        port = cluster.server.rpartition(":")[2]
        found = harness.run("doctor", "--cluster", cluster.file, *cluster.overrides, "--set", f"coordinator.listen=0.0.0.0:{port}", "--json",
                            env={"LAMINA_TLS_CA": ""})
        findings = {finding["check"]: finding for finding in json.loads(found.stdout)}
        self.assertEqual(findings["coordinator"]["state"], "ok", findings["coordinator"])
        self.assertEqual(findings["version"]["state"], "ok", findings["version"])

    def test_clients_and_nodes_over_tls_and_files_that_change(self):
        trust = {"LAMINA_TLS_CA": str(self.tls / "ca.pem")}
        os.environ.update(trust)
        self.addCleanup(os.environ.pop, "LAMINA_TLS_CA")
        with harness.Cluster(token=TOKEN, tls=self.keys(), gateway={"listen": "127.0.0.1:0"}) as cluster:
            self.assertEqual(self.generate(cluster).returncode, 0, cluster.logs())
            health = subprocess.run(["curl", "-s", f"http://{cluster.gateway}/health"], capture_output=True, text=True) \
                if shutil.which("curl") else None
            if health is not None:
                self.assertEqual(json.loads(health.stdout)["state"], "serving")

            self.assert_doctor_reaches(cluster)
            plain = self.generate(cluster, env={"LAMINA_TLS_CA": ""})
            self.assertNotEqual(plain.returncode, 0)
            self.assertIn("speaks TLS, and this process does not", plain.stderr)
            again = self.generate(cluster, env={"LAMINA_TLS_CA": ""})
            self.assertNotEqual(again.returncode, 0)
            self.assertEqual(cluster.log("coordinator").count("it speaks in the clear, and this port speaks TLS"), 1)

            other = self.make("other")
            strange = self.generate(cluster, env={"LAMINA_TLS_CA": f"{other}/ca.pem"})
            self.assertNotEqual(strange.returncode, 0)
            self.assertRegex(strange.stderr, "certificate of .* is not believed: .*(self-signed|issuer)")

            # A new CA, and certificates of it, at the same paths: seen without a restart.
            for name in ("ca.pem", "localhost.pem", "localhost.key"):
                shutil.copy(other / name, self.tls / name)
            end = time.monotonic() + WAIT_SECONDS
            while self.generate(cluster, env={"LAMINA_TLS_CA": f"{other}/ca.pem"}).returncode != 0:
                self.assertLess(time.monotonic(), end, "the files that changed were not read again")
                time.sleep(0.5)

    def test_no_version_before_1_2(self):
        """Of the coordinator and of the gateway, which has keys of its own. A server of openssl's own shows that the client would speak 1.1."""
        other = self.make("other")
        own = {"tls_certificate": f"{other}/localhost.pem", "tls_key": f"{other}/localhost.key"}
        with harness.Cluster(token=TOKEN, tls=self.keys(), wait=False, gateway={"listen": "127.0.0.1:0", **own}) as cluster:
            with subprocess.Popen(["openssl", "s_server", "-accept", "127.0.0.1:0", "-cert", own["tls_certificate"], "-key", own["tls_key"], "-tls1_1",
                                   "-cipher", "ALL:@SECLEVEL=0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as old:
                line = ""
                while not line.startswith("ACCEPT"):
                    line = old.stdout.readline()
                self.assertEqual(self.handshake(line.split()[1], "-tls1_1"), "TLSv1.1")
                old.kill()
            for server in (cluster.server, cluster.gateway):
                with self.subTest(server=server):
                    self.assertIsNone(self.handshake(server, "-tls1_1"))
                    self.assertEqual(self.handshake(server, "-tls1_2"), "TLSv1.2")
            for server, ca in ((cluster.server, self.tls), (cluster.gateway, other)):
                self.assertEqual(self.handshake(server, "-tls1_2", "-CAfile", f"{ca}/ca.pem", "-verify_return_error"), "TLSv1.2", server)

    @staticmethod
    def handshake(server, version, *words):
        """The version that was agreed on; None if there is none."""
        done = subprocess.run(["openssl", "s_client", "-connect", server, version, "-cipher", "ALL:@SECLEVEL=0", "-alpn", "h2", *words], input="",
                              capture_output=True, text=True, errors="replace", timeout=WAIT_SECONDS)
        agreed = re.search("^New, (TLSv[0-9.]+), Cipher is (?!.NONE)", done.stdout, re.M)
        protocol = re.search(r"^ *Protocol *: (TLSv[0-9.]+)$", done.stdout, re.M)
        return protocol[1] if agreed and protocol else None

    def test_members_are_changed_with_the_secret_and_a_certificate_of_the_node(self):
        os.environ["LAMINA_TLS_CA"] = str(self.tls / "ca.pem")
        self.addCleanup(os.environ.pop, "LAMINA_TLS_CA")
        self.issue("other-name", "DNS:m7")

        def drain(certificate, token):
            keys = self.keys(certificate=certificate)
            shown = [] if certificate is None else ["--tls-certificate", keys["certificate"], "--tls-key", keys["key"]]
            known = ["--cluster-token-file", str(cluster.token_file)] if token else []
            return cluster.lamina("node", "drain", "m1", *shown, *known)

        with harness.Cluster(token=TOKEN, tls=self.keys()) as cluster:
            for certificate, token, reason in ((None, True, "it showed no certificate"), ("other-name", True, "its certificate is not of m1"),
                                               ("localhost", False, "this command has none")):
                refused = drain(certificate, token)
                self.assertEqual(refused.returncode, 1, refused.stdout)
                self.assertIn(reason, refused.stderr)
            done = drain("localhost", True)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(cluster.processes["m1"].wait(WAIT_SECONDS), 0)

    def test_members_need_both_a_certificate_of_their_name_and_the_secret(self):
        os.environ["LAMINA_TLS_CA"] = str(self.tls / "ca.pem")
        self.addCleanup(os.environ.pop, "LAMINA_TLS_CA")
        self.issue("other-name", "DNS:m7")
        self.issue("over", "DNS:m1", "IP:127.0.0.1", days=0)
        other = self.make("other")
        shutil.copy(self.tls / "ca.pem", other / "ca.pem")  # It believes us; we do not believe it.
        none = {"ca": f"{self.tls}/ca.pem"}
        over = self.keys(certificate="over")
        tries = [(none, "it showed no certificate"), (self.keys(certificate="other-name"), "its certificate is not of m1"),
                 (self.keys(other), "its certificate is not believed: .*(certificate signature failure|issuer)")]
        with harness.Cluster(token=TOKEN, tls=self.keys(), wait=False) as cluster:
            cluster.kill("m1")
            for tls, reason in tries:
                said = self.node(cluster, tls)
                self.assertRegex(said, reason)
                self.assertRegex(cluster.log("coordinator"), f"refused a node: m1: {reason}")
            self.assertRegex(self.node(cluster, over), r"tls.certificate: .*over.pem expired at Jan  2 00:00:00 2020")
            without = harness.write_token(self.folder / "wrong.token", "another-secret-than-ours")
            self.assertRegex(self.node(cluster, self.keys(), "--cluster-token-file", str(without)), "did not prove that it knows")

            plain = self.node(cluster, None, until="speaks TLS")
            self.assertIn("speaks TLS, and this process does not", plain)
            cluster.start("m1")
            cluster.await_state("serving")

    def node(self, cluster, tls, *words, until=None):
        """What m1 says that comes with other credentials. It ends by itself, or once it has said `until`."""
        words = [*words, "--set", f"tls={json.dumps(tls) if tls else 'null'}"]
        process = subprocess.Popen([str(harness.BIN / "lamina-memory"), "--cluster", str(cluster.file), "--name", "m1", "--coordinator",
                                    cluster.server, *cluster.overrides, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        said = []
        for line in process.stdout:
            said.append(line)
            if until is not None and until in line:
                process.kill()
                break
        process.stdout.close()
        process.wait(WAIT_SECONDS)
        return "".join(said)

    def test_a_node_with_tls_at_a_coordinator_without(self):
        with harness.Cluster(token=TOKEN) as cluster:
            cluster.kill("m1")
            said = self.node(cluster, self.keys(), until="does not speak TLS")
            self.assertIn("does not speak TLS, and this process has tls.ca", said)
            self.assertEqual(cluster.log("coordinator").count("it speaks TLS, and this port does not"), 1)


if __name__ == "__main__":
    unittest.main()
