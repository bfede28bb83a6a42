#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/slurm under Slurm: slurmctld on the operator's machine, a slurmd on each of three others (machines.py)."""

import os
import re
import subprocess
import time
import unittest

import harness
import hosts as namespaces
from machines import MOUNT, Machines, leave_out_without

WAIT_SECONDS = 300
TOKENS = 200
NEAR = "the time limit is near"  # Of the job's log, before anything is told to stop.
MUNGE_SOCKET = "/dev/shm/munge.sock"

MUNGED = ("munged --key-file={mount}/munge.key --socket={socket} --pid-file=/dev/shm/munge.pid --log-file={mount}/munge.{name}.log "
          "--seed-file=/dev/shm/munge.seed --num-threads=2\n")
SLURMD = "slurmd -D -N {name} -f {mount}/slurm.conf > {mount}/slurmd.{name}.log 2>&1 &\n"
SLURMCTLD = "slurmctld -D -i -f {mount}/slurm.conf > {mount}/slurmctld.log 2>&1 &\n"

SLURM_CONF = """ClusterName=test
SlurmctldHost=operator({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={socket},cred_expire=5
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
KillWait=300
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

    def submit(self, *options):
        """A job that serves: its number."""
        submitted = self.slurm("sbatch", "--parsable", "--output", f"{MOUNT}/job.log", *options, "-p", "compute", "-N", "1", "--mem=1500", ":",
                               *options, "-p", "memory", "-N", "2", "--mem=320", str(harness.REPO / "deploy/slurm/lamina.sbatch"),
                               str(harness.MODEL), "transport=ucx")
        self.await_serving()
        return submitted.split("+")[0].strip()

    def await_serving(self, times=1):
        """The log has said so often that the cluster serves; the last address is the server's."""
        self.await_true(lambda: self.log().count("lamina: serving at") >= times, "a cluster that serves")
        self.server = re.findall("lamina: serving at (n1:[0-9]+)", self.log())[-1]

    def await_idle(self):
        self.await_true(lambda: self.slurm("sinfo", "-h", "-N", "-o", "%T", check=False).split() == ["idle"] * 3, "three idle nodes")

    def await_nothing_left(self):
        """Of the job, its processes and their shared memory."""
        self.await_true(lambda: not self.slurm("squeue", "-h").strip(), "the end of the job")
        self.await_true(lambda: not self.ours(), "the end of the daemons")
        left = [path for name in self.remote for path in os.listdir(self.path(name, "/dev/shm")) if not path.startswith(("munge", "slurm"))]
        if left:
            raise AssertionError(f"left in /dev/shm: {left}")

    def ours(self):
        return [line for name in self.remote for line in self.processes(name) if "lamina" in line]


PROMPT = ["--prompt", "Once upon a time", "--ignore-eos", "--temperature", "0"]


class SlurmCase(unittest.TestCase):

    whole = []  # The text of TOKENS tokens; that of fewer is its beginning.

    def setUp(self):
        harness.require_model(self)

    def wanted(self):
        if not self.whole:
            with harness.Cluster(model=harness.MODEL) as cluster:
                self.whole.append(cluster.lamina("generate", *PROMPT, "--max-tokens", str(TOKENS)).stdout)
        return self.whole[0]

    def check_text(self, machines):
        done = harness.run("generate", *PROMPT, "--max-tokens", "16", server=machines.server, prefix=machines.prefix(machines.operator))
        self.assertEqual(done.returncode, 0, done.stderr + machines.log())
        text = done.stdout.rstrip("\n")
        harness.require_same_answer(self, text, self.wanted()[:len(text)])

    def popen(self, machines, *words):
        command = [*machines.prefix(machines.operator), str(harness.BIN / "lamina"), *words, "--server", machines.server]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def begin(self, machines, tokens=TOKENS):
        """A request, of which the first text has come; (it, that text)."""
        process = self.popen(machines, "generate", *PROMPT, "--max-tokens", str(tokens))
        first = process.stdout.read(4)
        self.assertEqual(len(first), 4, machines.log())
        return process, first

    def begin_unless_stopping(self, machines):
        """As begin(); None where the job has begun to drain meanwhile, and says so."""
        process = self.popen(machines, "generate", *PROMPT, "--max-tokens", str(TOKENS))
        first = process.stdout.read(4)
        if first:
            return process, first
        self.assertEqual(process.wait(WAIT_SECONDS), 1, machines.log())
        self.assertRegex(process.stderr.read(), "is stopping")
        self.assertIn(NEAR, machines.log())
        return None

    def finish(self, machines, begun):
        process, first = begun
        text = first + process.stdout.read()
        self.assertEqual(process.wait(WAIT_SECONDS), 0, process.stderr.read() + machines.log())
        harness.require_same_answer(self, text, self.wanted())


class CancelTest(SlurmCase):

    def test_a_job_serves_loses_a_step_and_drains_when_it_is_cancelled(self):
        self.wanted()
        with SlurmMachines() as machines:
            machines.await_idle()
            job = machines.submit()
            config = (machines.folder / "job/cluster.yaml").read_text()
            self.assertRegex(config, "name: m1, host: n3, .*threads: 1, .*capacity: 256MiB")
            self.check_text(machines)

            # A task that is killed ends no other: the cluster goes on.
            machines.run("n3", "pkill", "-KILL", "-x", "lamina-memory")
            machines.await_true(lambda: "serving; without m1" in machines.log(), "the loss")
            self.check_text(machines)

            # Who runs when the job is cancelled gets the whole text.
            running = self.begin(machines)
            machines.slurm("scancel", job)
            self.finish(machines, running)
            machines.await_nothing_left()
            self.assertIn("asks to be let go", machines.log())


class TimeLimitTest(SlurmCase):

    def test_requests_finish_before_the_time_limit_and_a_job_after_it_can_be_cancelled(self):
        self.wanted()
        with SlurmMachines() as machines:
            machines.await_idle()
            job = machines.submit("--time=10")
            # Slurm looks at time limits every half a minute, and warns when less than 90 s and that are left.
            self.shorten(machines, job)
            running = [self.begin(machines)]
            while NEAR not in machines.log():
                # One more while the last one runs.
                begun = self.begin_unless_stopping(machines)
                self.finish(machines, running.pop())
                if begun is None:
                    break
                running.append(begun)
            for last in running:
                self.finish(machines, last)
            machines.await_nothing_left()
            log = machines.log()
            self.assertRegex(log, "asks to be let go|was told to stop")
            self.assertNotIn("DUE TO TIME LIMIT", log)
            self.assertTrue(log.rstrip().endswith("lamina: ended"), log[-500:])

            machines.await_idle()
            second = self.resubmit(machines)
            running = self.begin(machines)
            machines.slurm("scancel", second)
            self.finish(machines, running)
            machines.await_nothing_left()

    @staticmethod
    def resubmit(machines):
        (machines.folder / "job.log").unlink()
        return machines.submit()

    @staticmethod
    def shorten(machines, job):
        """A time limit that is near, and not so near that the job would be killed."""
        run = re.search("RunTime=00:([0-9]+):([0-9]+)", machines.slurm("scontrol", "show", "job", job))
        minutes = int(run[1]) + (2 if int(run[2]) > 30 else 1)
        for component in (f"{job}+0", f"{job}+1"):
            machines.slurm("scontrol", "update", f"jobid={component}", f"timelimit={minutes}")


class RequeueTest(SlurmCase):

    def test_after_a_requeue_new_requests_are_served(self):
        self.wanted()
        with SlurmMachines() as machines:
            machines.await_idle()
            job = machines.submit()
            # The host of the coordinator is lost: who runs is told, and keeps what came. The job is queued again, and serves.
            long = self.popen(machines, "generate", *PROMPT, "--max-tokens", "3000")
            measured = self.popen(machines, "bench", "--requests", "1", "--output-tokens", "3000", "--json")
            self.assertTrue(long.stdout.read(20))
            machines.kill("n1")
            self.assertEqual(long.wait(WAIT_SECONDS), 1)
            self.assertIn("UNAVAILABLE", measured.communicate(timeout=WAIT_SECONDS)[0])
            machines.slurm("scontrol", "update", "nodename=n1", "state=down", "reason=power")
            machines.boot("n1")  # It is up again once it has registered (ReturnToService).
            machines.await_serving(times=2)
            self.assertIn("Restarts=1", machines.slurm("scontrol", "show", "job", job))
            self.check_text(machines)


if __name__ == "__main__":
    namespaces.leave_out_unless_possible()
    leave_out_without("slurmctld", "slurmd", "sbatch", "munged", "nsenter", "unshare", "pkill")
    unittest.main()
