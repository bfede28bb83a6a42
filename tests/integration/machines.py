# SPDX-License-Identifier: Apache-2.0
"""Hosts (hosts.py) that are more like machines: processes, mounts, shared memory, host name, home and temporary folder of their
own, and an sshd each. One of them, the operator's, sees this machine's files instead and has no sshd; the others see no model. Needs root.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import MODEL
from hosts import LEFT_OUT, Hosts, _must

SSHD = "/usr/sbin/sshd"
PORT = 2222
# Where a machine sees the folder of the test.
MOUNT = "/mnt"
START_SECONDS = 30

# Process 1 of a machine. bash reaps what is left to it; its end ends the machine.
NODE = r"""
set -eu
name=$1 space=$2 folder=$3 models=$4 temporary=$5
hostname "$name"
mount --make-rprivate /
mount --bind "$folder" /mnt
mount --bind /mnt/hosts /etc/hosts
mount --bind /mnt/resolv.conf /etc/resolv.conf
mount -t tmpfs tmpfs /dev/shm
if [ "$space" != - ]; then
  mount -t tmpfs tmpfs /run
  mount -t tmpfs -o "size=$space" tmpfs ~root
  mount -t tmpfs -o "size=$space" tmpfs "$temporary"
  mkdir /run/sshd
  [ ! -d "$models" ] || mount -t tmpfs tmpfs "$models"
fi
cd /
for script in /mnt/start."$name".*; do
  [ ! -f "$script" ] || bash "$script"
done
echo up > "/mnt/up.$name"
while :; do sleep 3600 & wait; done
"""

SSHD_CONFIG = """Port {port}
HostKey {mount}/key.{name}
PidFile none
AuthorizedKeysFile {mount}/user.pub
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""

SSH_CONFIG = """Host *
  Port {port}
  User root
  IdentityFile {folder}/user
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


class Machines(Hosts):
    """Use as a context manager. `names` are those with an sshd; `operator` is one more, without.

    machines.folder         the test's folder, which is /mnt on each
    machines.prefix("n1")   stands before a command that is to run on n1
    machines.kill("n1")     its power is cut; machines.boot("n1") starts it again, with an empty home
    """

    operator = "operator"

    def __init__(self, names, with_sshd=True, with_models=False):
        super().__init__([*names, self.operator])
        self.remote = list(names)
        self.space = {name: "2g" for name in names}
        self._with_sshd = with_sshd
        self._with_models = with_models
        self._processes = {}
        self._temporary = None

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="lamina-machines-")
        self.folder = Path(self._temporary.name)
        os.chmod(self.folder, 0o755)
        return super().__enter__()

    def __exit__(self, *_):
        for name in list(self._processes):
            self.kill(name)
        super().__exit__()
        self._temporary.cleanup()

    def _make(self):
        super()._make()
        lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{a} {n}" for n, a in self.addresses.items())]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")
        (self.folder / "resolv.conf").write_text("")
        (self.folder / "node.sh").write_text(NODE)
        self._make_files()
        for name in self.names:
            self.boot(name)

    def _make_files(self):
        """Before the machines start: what is to run there (start.NAME.*), and what that reads."""
        if self._with_sshd:
            self._make_keys()

    def _make_keys(self):
        known = []
        for name in ["user", *(f"key.{n}" for n in self.remote)]:
            _must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        for name in self.remote:
            key = (self.folder / f"key.{name}.pub").read_text().split()
            known.append(f"[{name}]:{PORT} {key[0]} {key[1]}")
            (self.folder / f"sshd.{name}").write_text(SSHD_CONFIG.format(port=PORT, mount=MOUNT, name=name))
            (self.folder / f"start.{name}.sshd").write_text(f"{SSHD} -D -e -f {MOUNT}/sshd.{name} 2> {MOUNT}/sshd.{name}.log &\n")
        (self.folder / "known_hosts").write_text("\n".join(known) + "\n")
        (self.folder / "ssh.conf").write_text(SSH_CONFIG.format(port=PORT, folder=self.folder))

    def hide(self, name, program):
        """From its next boot on the machine lacks that program."""
        path = shutil.which(program)
        if path is not None:
            (self.folder / f"start.{name}.hide").write_text(f"mount --bind /dev/null {path}\n")

    def boot(self, name):
        up = self.folder / f"up.{name}"
        up.unlink(missing_ok=True)
        # Ends with this process, however that ends.
        command = ["setpriv", "--pdeathsig", "KILL", "nsenter", f"--net=/run/netns/{self.namespace(name)}", "unshare", "-m",
                   "-u", "-i", "-p", "-f", "--mount-proc", "--kill-child", "bash", str(self.folder / "node.sh"), name,
                   self.space.get(name, "-"), str(self.folder), "-" if self._with_models else str(MODEL.parent),
                   tempfile.gettempdir()]
        log = open(self.folder / f"boot.{name}.log", "wb")
        with log:
            self._processes[name] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                                     start_new_session=True)
        self._await(name, up.exists)
        if self._with_sshd and name in self.remote:
            self._await(name, lambda: self._listens(name))

    def _listens(self, name):
        log = self.folder / f"sshd.{name}.log"
        return log.exists() and "listening" in log.read_text()

    def _await(self, name, condition):
        end = time.monotonic() + START_SECONDS
        while not condition():
            if self._processes[name].poll() is not None or time.monotonic() > end:
                raise OSError(f"{name} did not start: {(self.folder / f'boot.{name}.log').read_text()}")
            time.sleep(0.01)

    def kill(self, name):
        process = self._processes.pop(name)
        os.kill(self.pid_of_init(process), signal.SIGKILL)
        process.wait()

    @staticmethod
    def pid_of_init(process):
        """Process 1 of the machine: the child of unshare."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(children[0]) if children else process.pid

    def prefix(self, name):
        pid = str(self.pid_of_init(self._processes[name]))
        return ["nsenter", "--target", pid, "--net", "--mount", "--uts", "--ipc", "--pid"]

    def path(self, name, path):
        """Where this machine sees a file of another."""
        return Path(f"/proc/{self.pid_of_init(self._processes[name])}/root{path}")

    def run(self, name, *words):
        return subprocess.run([*self.prefix(name), *words], capture_output=True, text=True, timeout=300)

    def set_link(self, name, state):
        _must("ip", "-n", self.namespace("switch"), "link", "set", f"port{self.names.index(name)}", state)

    def processes(self, name):
        """Command lines of what runs there, but for process 1, sshd and what looks."""
        lines = self.run(name, "ps", "-e", "-o", "args=").stdout.splitlines()
        own = ("ps -e", "bash ", "sleep 3600", "sshd", SSHD)
        return [line for line in lines if not line.strip().startswith(own)]


def leave_out_without(*programs):
    """Ends the test with 77, and says why, where programs of its packages are missing."""
    missing = [program for program in programs if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        print(f"{', '.join(missing)} missing: deploy/install_packages.sh --cluster-tests installs them")
        sys.exit(1 if os.environ.get("LAMINA_REQUIRE_CLUSTER_TESTS") == "1" else LEFT_OUT)
