#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: manifests render, are what the API takes, and their containers run as they say.

A kubectl that renders overlays (1.27 or later) renders them; without one kustomize.py does, whose result is compared with kubectl's
where there is one. Each container runs in a
machine of its own (machines.py) over a root that is made of this machine's, read-only, as the manifest's user, with its command; its
probes are asked as the manifest says.
"""

import json
import re
import shutil
import subprocess
import sys
import time
import unittest

import harness

VALIDATE, YAML = "kubernetes-validate==1.37.0", "pyyaml==6.0.2"
API = "1.32.0"
KUBECTL_LEAST = (1, 27)
OVERLAYS = ("cpu", "gpu", "rdma")
WAIT_SECONDS = 300
FOLDER = harness.REPO / "deploy/kubernetes"

# What a container sees: this machine's /usr, the bundle, its mounts; nothing else, and all of it read-only.
POD = r"""
set -eu
bundle=$1 models=$2 user=$3
shift 3
root=$(mktemp -d -p /dev/shm)
mount -t tmpfs tmpfs "$root"
mkdir -p "$root/usr" "$root/etc" "$root/opt/lamina" "$root/models" "$root/etc/lamina" "$root/run/secrets/lamina" "$root/dev/shm" "$root/proc" "$root/sys" "$root/var/lib/lamina"
for link in bin lib lib64 sbin; do ln -s "usr/$link" "$root/$link"; done
mount --bind /usr "$root/usr"
mount --bind "$bundle" "$root/opt/lamina"
mount --bind "$models" "$root/models"
cp /etc/hosts /etc/ld.so.cache /etc/nsswitch.conf "$root/etc/"
cp /mnt/cluster.yaml "$root/etc/lamina/"
cp -r /mnt/secrets/. "$root/run/secrets/lamina/"
chown -R "0:$user" "$root/run/secrets/lamina" && chmod 0440 "$root/run/secrets/lamina/"*
for device in null urandom zero; do touch "$root/dev/$device"; mount --bind "/dev/$device" "$root/dev/$device"; done
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
for part in "$root/usr" "$root/opt/lamina" "$root/models" "$root"; do mount -o remount,bind,ro "$part"; done
exec chroot "$root" /usr/bin/setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""


def kubectl():
    """A kubectl that renders overlays, or why there is none."""
    path = shutil.which("kubectl")
    if path is None:
        return None, "there is no kubectl"
    client = json.loads(subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, text=True).stdout)["clientVersion"]
    version = (int(client["major"]), int(re.match(r"\d+", client["minor"])[0]))
    return (path, "") if version >= KUBECTL_LEAST else (None, f"kubectl is {client['gitVersion']}, which renders no overlays")


def render(overlay):
    import kustomize
    path, reason = kubectl()
    if path is not None:
        return render_by(path, overlay)
    print(f"{reason}: rendered by kustomize.py")
    return kustomize.render(FOLDER / "overlays" / overlay)


def render_by(path, overlay):
    import yaml
    done = subprocess.run([path, "kustomize", str(FOLDER / "overlays" / overlay)], capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def pods_of(documents):
    """(name, pod spec) of each pod, by the names that Kubernetes gives."""
    pods = []
    for document in documents:
        if document["kind"] in ("StatefulSet", "Deployment"):
            spec, name = document["spec"], document["metadata"]["name"]
            count = spec["replicas"] if document["kind"] == "StatefulSet" else 1
            for i in range(count):
                pods.append((f"{name}-{i}" if name in ("c", "m") else name, spec["template"]["spec"]))
    return pods


def without_hash(documents):
    """Config maps by the names that the manifests have: kubectl puts a hash of the data behind them."""
    return json.loads(re.sub(r'"(lamina-cluster)-[0-9a-z]{10}"', r'"\1"', json.dumps(documents)))


def selects(selector, labels):
    """Whether a selector, of matchLabels and of NotIn, is one of these labels."""
    wrong = [rule for rule in selector.get("matchExpressions", []) if rule["operator"] != "NotIn"]
    if wrong:
        raise ValueError(wrong)
    return (all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())
            and all(labels.get(rule["key"]) not in rule["values"] for rule in selector.get("matchExpressions", [])))


class ManifestTest(unittest.TestCase):

    def test_both_ways_of_rendering_agree(self):
        import kustomize
        path, reason = kubectl()
        if path is None:
            self.skipTest(f"{reason}; one of 1.27 or later does")
        for overlay in OVERLAYS:
            def order(document):
                return document["kind"], document["metadata"]["name"]
            theirs = without_hash(render_by(path, overlay))
            ours = kustomize.render(FOLDER / "overlays" / overlay)
            self.assertEqual(sorted(ours, key=order), sorted(theirs, key=order), overlay)

    def test_manifests_are_what_the_api_takes(self):
        import kubernetes_validate
        for overlay in OVERLAYS:
            for document in render(overlay):
                if document["kind"] != "ServiceMonitor":  # Of the Prometheus operator, not of the API.
                    kubernetes_validate.validate(document, API, strict=True)
        wrong = next(d for d in render("cpu") if d["kind"] == "StatefulSet")
        wrong["spec"]["podManagmentPolicy"] = "Parallel"
        with self.assertRaises(Exception):
            kubernetes_validate.validate(wrong, API, strict=True)

    def test_overlays_ask_for_their_devices(self):
        asked = {overlay: [pod["containers"][0]["resources"]["limits"] for _, pod in pods_of(render(overlay))] for overlay in OVERLAYS}
        self.assertEqual({resource for limits in asked["cpu"] for resource in limits}, {"memory"}, "what nothing uses is not asked for")
        self.assertEqual(sum("nvidia.com/gpu" in limits for limits in asked["gpu"]), 1)
        self.assertEqual(sum("rdma/hca_shared_devices_a" in limits for limits in asked["rdma"]), 3)

    def test_each_image_is_built_by_a_command_of_the_docs(self):
        page = (harness.REPO / "docs/clusters.md").read_text()
        built = {image: harness.REPO / file for file, image in re.findall(r"(?m)^podman build -f (\S+) -t (\S+) \.", page)}
        for overlay in OVERLAYS:
            for name, pod in pods_of(render(overlay)):
                image = pod["containers"][0]["image"]
                self.assertIn(image, built, f"{overlay} {name}")
                text = built[image].read_text()
                self.assertEqual("--preset cuda" in text, overlay == "gpu", image)
                self.assertIn(pod["containers"][0]["command"][0].rpartition("/")[2], re.findall(r"--target (\S+)", text), image)

    def test_cluster_files_are_ours_and_name_the_pods(self):
        for overlay in OVERLAYS:
            documents = render(overlay)
            text = next(d for d in documents if d["kind"] == "ConfigMap")["data"]["cluster.yaml"]
            listed = subprocess.run([str(harness.BIN / "lamina"), "config", "--list", "--cluster", "/dev/stdin"], input=text,
                                    capture_output=True, text=True)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            names = {line.split()[1] for line in listed.stdout.splitlines()} - {"coordinator", "gateway"}
            self.assertEqual(names, {name for name, _ in pods_of(documents) if name[0] in "cm" and name[1] == "-"})

    def test_each_service_is_scraped_once_and_the_gateway_with_a_key_of_its_secret(self):
        for overlay in OVERLAYS:
            documents = render(overlay)
            monitors = [d["spec"] for d in documents if d["kind"] == "ServiceMonitor"]
            gateway = next(pod for name, pod in pods_of(documents) if name == "lamina-gateway")
            secrets = next(v["projected"]["sources"] for v in gateway["volumes"] if v["name"] == "secrets")
            for service in (d for d in documents if d["kind"] == "Service"):
                found = [m for m in monitors if selects(m["selector"], service["metadata"]["labels"])]
                self.assertEqual(len(found), 1, service["metadata"])
                [endpoint] = found[0]["endpoints"]
                self.assertIn(endpoint["port"], [port["name"] for port in service["spec"]["ports"]])
                key = endpoint.get("authorization", {}).get("credentials")
                if service["metadata"]["name"] == "lamina-gateway":
                    [rule] = endpoint["metricRelabelings"]
                    self.assertEqual((rule["action"], rule["sourceLabels"]), ("drop", ["__name__"]))
                    self.assertTrue(re.fullmatch(rule["regex"], "vllm:num_requests_running"))
                    self.assertFalse(re.fullmatch(rule["regex"], "lamina_gateway_streams"))
                    self.assertEqual(key, {"name": "lamina-api-keys", "key": "api_keys"})
                    self.assertIn({"secret": {"name": key["name"]}}, secrets)
                else:
                    self.assertIsNone(key, service["metadata"])
                    self.assertNotIn("metricRelabelings", endpoint, "the coordinator's are those that stay")

    def test_alerts_know_the_jobs_of_both_ways_to_scrape(self):
        import yaml
        monitoring = harness.REPO / "deploy/monitoring"
        rules = yaml.safe_load((monitoring / "alerts.yml").read_text())["groups"][0]["rules"]
        jobs = re.search(r'up\{job=~"(.+?)"\}', next(rule["expr"] for rule in rules if rule["alert"] == "LaminaDaemonDown"))[1]
        scraped = {config["job_name"] for config in yaml.safe_load((monitoring / "prometheus.yml").read_text())["scrape_configs"]}
        # The operator of Prometheus calls a job by its service.
        scraped |= {document["metadata"]["name"] for document in render("cpu") if document["kind"] == "Service"}
        self.assertGreater(len(scraped), 4)
        for job in scraped:
            self.assertTrue(re.fullmatch(jobs, job), job)

    def test_nobody_may_more_than_it_needs(self):
        for overlay in OVERLAYS:
            for name, pod in pods_of(render(overlay)):
                self.assertTrue(pod["securityContext"]["runAsNonRoot"], name)
                self.assertFalse(pod["automountServiceAccountToken"], name)
                security = pod["containers"][0]["securityContext"]
                self.assertTrue(security["readOnlyRootFilesystem"], name)
                self.assertEqual(security["capabilities"]["drop"], ["ALL"], name)


class PodsTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)
        sys.path.insert(0, str(harness.REPO / "deploy/hosts"))
        sys.dont_write_bytecode = True
        import bundle
        import settings
        self.bundle = self.enterContext(bundle.bundle_of(settings.Settings(bin_flag=str(harness.BIN))))

    def test_containers_run_as_the_manifests_say(self):
        from machines import Machines
        documents = render("cpu")
        pods = pods_of(documents)
        with Machines([name for name, _ in pods], with_sshd=False, with_models=True) as machines:
            self.machines = machines
            self.prepare(documents)
            running = {}
            self.addCleanup(lambda: [process.kill() for process in running.values() if process.poll() is None])
            for name, pod in pods:
                running[name] = self.start(name, pod)
            for name, pod in pods:
                self.await_probe(name, pod, "livenessProbe")
            for name, pod in pods:
                self.await_probe(name, pod, "readinessProbe")

            server = f"{machines.addresses['lamina-gateway']}:8000"
            answer = self.ask(server, max_tokens=3).communicate(timeout=WAIT_SECONDS)[0]
            self.assertIn('"text"', answer, f"{answer}\n{self.logs()}")

            # All pods are told to stop while a request runs.
            running_request = self.ask(server, max_tokens=150, stream=True)
            self.assertIn("data:", running_request.stdout.readline(), self.logs())
            for name, _ in pods:
                machines.run(name, "pkill", "-TERM", "-u", "10001")
            text = running_request.communicate(timeout=WAIT_SECONDS)[0]
            self.assertIn('"finish_reason":"length"', text.replace(" ", ""), self.logs())
            self.assertIn("[DONE]", text)
            for name, process in running.items():
                self.assertEqual(process.wait(WAIT_SECONDS), 0, f"{name}: {self.log(name)[-2000:]}")

    def ask(self, server, **keys):
        """A request by curl, which runs."""
        body = json.dumps({"model": "smollm2-135m-instruct", "prompt": "Once", "ignore_eos": True, **keys})
        words = ["curl", "-s", "-N", f"http://{server}/v1/completions", "-H", f"Authorization: Bearer {self.key}", "-H",
                 "Content-Type: application/json", "-d", body]
        process = subprocess.Popen([*self.machines.prefix(self.machines.operator), *words], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def prepare(self, documents):
        """The volumes: cluster file, secrets of a CA of `cluster.sh certificates`."""
        folder = self.machines.folder
        config = next(d for d in documents if d["kind"] == "ConfigMap")["data"]["cluster.yaml"]
        (folder / "cluster.yaml").write_text(config)
        file = folder / "names.yaml"
        file.write_text(harness.cluster_file(model=harness.MODEL, compute=[{"name": "c-0"}], memory=[{"name": n, "capacity": "64MiB"} for n in ("m-0", "m-1")],
                                             coordinator={"listen": "127.0.0.1:7400", "advertise": "lamina-coordinator:7400"}))
        subprocess.run([str(harness.REPO / "deploy/cluster.sh"), "certificates", "--cluster", str(file), "--state", str(folder / "state"), "--bin",
                        str(harness.BIN)], check=True, capture_output=True)
        secrets = folder / "secrets"
        secrets.mkdir()
        for name, source in (("ca.crt", "ca.pem"), ("tls.crt", "localhost.pem"), ("tls.key", "localhost.key")):
            shutil.copy(folder / "state/tls" / source, secrets / name)
        (secrets / "cluster.token").write_text("the-secret-of-the-pods")
        self.key = "a-key-of-the-gateway"
        (secrets / "api_keys").write_text(self.key + "\n")
        (folder / "pod.sh").write_text(POD)

    def start(self, name, pod):
        container = pod["containers"][0]
        command = [word.replace("$(POD_NAME)", name) for word in container["command"]]
        # Of this size, and of a machine that may be slow.
        command += ["--set", "memory.m-0.capacity=256MiB", "--set", "memory.m-1.capacity=256MiB", "--set", "drain_seconds=600"]
        words = ["unshare", "-m", "bash", "/mnt/pod.sh", str(self.bundle), str(harness.MODEL.parent), str(pod["securityContext"]["runAsUser"]),
                 *command]
        with open(self.machines.folder / f"pod.{name}.log", "wb") as log:
            return subprocess.Popen([*self.machines.prefix(name), *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def log(self, name):
        return (self.machines.folder / f"pod.{name}.log").read_text(errors="replace")

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.machines.folder.glob("pod.*.log"))

    def await_probe(self, name, pod, kind):
        container = pod["containers"][0]
        probe = container[kind]["httpGet"]
        port = next(p["containerPort"] for p in container["ports"] if p["name"] == probe["port"])
        end = time.monotonic() + WAIT_SECONDS
        while True:
            asked = self.machines.run(name, "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", f"http://127.0.0.1:{port}{probe['path']}")
            if asked.stdout == "200":
                return
            self.assertLess(time.monotonic(), end, f"{kind} of {name}: {asked.stdout}\n{self.logs()}")
            time.sleep(0.2)


if __name__ == "__main__":
    harness.run_in_environment(VALIDATE, YAML)
    import hosts as namespaces
    from machines import leave_out_without
    namespaces.leave_out_unless_possible()
    leave_out_without("curl", "nsenter", "openssl", "pkill", "setpriv", "unshare")
    unittest.main()
