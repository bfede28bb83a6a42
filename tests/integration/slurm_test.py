#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm under Slurm: slurmctld on the operator's machine, a slurmd on each of three others (machines.py)."""

import json
import os
import re
import threading
import time
import unittest

import harness
import hosts as namespaces
from machines import MOUNT, Machines, leave_out_without

WAIT_SECONDS = 90
MUNGE_SOCKET = "/dev/shm/munge.sock"

MUNGED = ("munged --key-file={mount}/munge.key --socket={socket} --pid-file=/dev/shm/munge.pid --log-file={mount}/munge.{name}.log "
          "--seed-file=/dev/shm/munge.seed --num-threads=2\n")
SLURMD = "slurmd -D -N {name} -f {mount}/slurm.conf > {mount}/slurmd.{name}.log 2>&1 &\n"
SLURMCTLD = "slurmctld -D -i -f {mount}/slurm.conf > {mount}/slurmctld.log 2>&1 &\n"

SLURM_CONF = """ClusterName=test
SlurmctldHost=operator({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={socket}
CryptoType=crypto/munge
StateSaveLocation={mount}/slurm.state
SlurmdSpoolDir={mount}/spool.%n
SlurmctldPidFile=/dev/shm/slurmctld.pid
SlurmdPidFile=/dev/shm/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,bf_hetjob_immediate
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE
ReturnToService=2
KillWait=20
SlurmdTimeout=30
{nodes}
PartitionName=compute Nodes=n1 Default=YES State=UP
PartitionName=memory Nodes=n2,n3 State=UP
"""


class SlurmMachines(Machines):
    """Machines on which Slurm runs."""

    def __init__(self):
        super().__init__(["n1", "n2", "n3"], with_sshd=False, with_models=True)

    def _make_files(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.folder / "slurm.state").mkdir()
        nodes = "\n".join(f"NodeName={n} NodeAddr={self.addresses[n]} CPUs=4 RealMemory=4000 State=UNKNOWN" for n in self.remote)
        (self.folder / "slurm.conf").write_text(SLURM_CONF.format(address=self.addresses[self.operator], socket=MUNGE_SOCKET, mount=MOUNT,
                                                                  nodes=nodes))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        for name in self.names:
            (self.folder / f"spool.{name}").mkdir()
            daemon = SLURMCTLD if name == self.operator else SLURMD
            (self.folder / f"start.{name}.slurm").write_text((MUNGED + daemon).format(name=name, mount=MOUNT, socket=MUNGE_SOCKET))

    def slurm(self, *words, check=True):
        result = self.run(self.operator, "env", "--chdir", MOUNT, f"SLURM_CONF={MOUNT}/slurm.conf", f"LAMINA_BIN={harness.BIN}",
                          f"LAMINA_DIR={MOUNT}/job", *words)
        if check and result.returncode != 0:
            raise AssertionError(f"{words}: {result.stdout}{result.stderr}")
        return result.stdout

    def log(self):
        path = self.folder / "job.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def await_true(self, condition, what):
        end = time.monotonic() + WAIT_SECONDS
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited {WAIT_SECONDS} s for {what}\n{self.log()[-4000:]}")
            time.sleep(0.1)

    def ours(self):
        return [line for name in self.remote for line in self.processes(name) if "lamina" in line]


class SlurmTest(unittest.TestCase):

    def setUp(self):
        harness.require_model(self)

    def generate(self, machines, server, tokens):
        return harness.run("generate", "--prompt", "Once upon a time", "--max-tokens", str(tokens), "--ignore-eos", "--json", server=server,
                           prefix=machines.prefix(machines.operator))

    def test_a_job_serves_loses_a_step_and_drains(self):
        with harness.Cluster() as cluster:
            wanted = json.loads(cluster.lamina("generate", "--prompt", "Once upon a time", "--max-tokens", "16", "--ignore-eos",
                                               "--json").stdout)["token_ids"]
        with SlurmMachines() as machines:
            machines.await_true(lambda: machines.slurm("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * 3, "three idle nodes")
            submitted = machines.slurm("sbatch", "--parsable", "--output", f"{MOUNT}/job.log", "-p", "compute", "-N", "1", "--mem=1500", ":", "-p",
                                       "memory", "-N", "2", "--mem=320", str(harness.REPO / "deploy/slurm/lamina.sbatch"), str(harness.MODEL),
                                       "transport=ucx")
            job = submitted.split("+")[0].strip()
            machines.await_true(lambda: "lamina: serving at" in machines.log(), "a cluster that serves")
            server = re.search("lamina: serving at (n1:[0-9]+)", machines.log())[1]
            config = (machines.folder / "job/cluster.yaml").read_text()
            self.assertRegex(config, "name: m1, host: n3, .*threads: 1, .*capacity: 256MiB")
            self.assertEqual(json.loads(self.generate(machines, server, 16).stdout)["token_ids"], wanted)

            # A task that is killed ends no other: the cluster goes on.
            machines.run("n3", "pkill", "-KILL", "-x", "lamina-memory")
            machines.await_true(lambda: "serving; without m1" in machines.log(), "the loss")
            self.assertEqual(json.loads(self.generate(machines, server, 16).stdout)["token_ids"], wanted)

            # Who runs when the job is cancelled gets the whole text.
            answers = []
            long = threading.Thread(target=lambda: answers.append(self.generate(machines, server, 100)))
            long.start()
            machines.await_true(lambda: '"running":1' in self.status(machines, server), "a running request")
            machines.slurm("scancel", job)
            long.join()
            self.assertEqual(answers[0].returncode, 0, answers[0].stderr + machines.log())
            self.assertEqual(len(json.loads(answers[0].stdout)["token_ids"]), 100)
            machines.await_true(lambda: not machines.slurm("squeue", "-h").strip(), "the end of the job")
            machines.await_true(lambda: not machines.ours(), "the end of the daemons")
            self.assertIn("asks to be let go", machines.log())

    @staticmethod
    def status(machines, server):
        return harness.run("status", "--json", server=server, prefix=machines.prefix(machines.operator)).stdout.replace(" ", "")


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    leave_out_without("slurmctld", "slurmd", "sbatch", "munged", "nsenter", "unshare", "pkill")
    unittest.main()
