#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a cluster file of a heterogeneous Slurm job: its first component are compute nodes, its second memory nodes.

usage: cluster_file.py --model MODEL --token FILE [--kv-share SHARE]

Hosts, cores, memory and GPUs are those of the allocation, as SLURM_* variables and scontrol tell them. A host of the first
component has a compute node for each of its GPUs, or one without a GPU. Of the memory of a host of the second component
SHARE is for KV (default: 0.8). It is asked for with --mem; without it LAMINA_CAPACITY says how much.
"""

import argparse
import json
import os
import re
import subprocess
import sys


def variable(name, group):
    """SLURM_NAME_HET_GROUP_N of a component; empty if there is none."""
    return os.environ.get(f"SLURM_{name}_HET_GROUP_{group}", "")


def scontrol(*words):
    return subprocess.run(["scontrol", *words], check=True, capture_output=True, text=True).stdout


def hosts(group):
    names = variable("JOB_NODELIST", group)
    if not names:
        sys.exit(f"cluster_file.py: error: there is no component {group}; submit a heterogeneous job: sbatch -N1 : -N2 lamina.sbatch")
    return scontrol("show", "hostnames", names).split()


def per_host(text, count):
    """"4(x2),8" is [4, 4, 8]."""
    values = []
    for part in filter(None, text.split(",")):
        number, times = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part).groups()
        values += [int(number)] * int(times or 1)
    return values or [1] * count


def gpus_in(gres):
    """"gpu:a100:2(IDX:0,3),nic:1(IDX:0)" is 2."""
    return sum(map(int, re.findall(r"(?:^|,)gpu(?::[^:(),]+)?:(\d+)(?=[(,]|$)", gres)))


def gpus_of(names):
    """How many GPUs each host of the first component has for the job, by name."""
    found = dict.fromkeys(names, 0)
    for job in re.split(r"(?m)^(?=JobId=)", scontrol("--details", "show", "job", os.environ["SLURM_JOB_ID"])):
        if re.search(r"HetJobOffset=[1-9]", job):
            continue
        # A line for hosts that have the same: "  Nodes=n[1-2] CPU_IDs=0-3 Mem=1500 GRES=gpu:2(IDX:0-1)".
        for line in re.finditer(r"(?m)^\s+Nodes=(\S+) .*\bGRES=(\S*)$", job):
            for host in scontrol("show", "hostnames", line[1]).split():
                found[host] = found.get(host, 0) + gpus_in(line[2])
    if not any(found.values()) and (variable("GPUS_PER_NODE", 0) or variable("GPUS", 0)):
        sys.exit("cluster_file.py: error: the first component asked for GPUs, and `scontrol --details show job` names none of its hosts'")
    return found


def compute_nodes(names, cores):
    """Those of a host share its cores. CUDA counts the GPUs of a job from 0, whichever they are."""
    gpus = gpus_of(names)
    nodes = []
    for host, count in zip(names, cores):
        devices = [f"cuda:{gpu}" for gpu in range(gpus[host])] or ["cpu"]
        nodes += [{"name": f"c{len(nodes) + i}", "host": host, "threads": max(1, count // len(devices)), "device": device}
                  for i, device in enumerate(devices)]
    return nodes


def capacity(share):
    given = os.environ.get("LAMINA_CAPACITY")
    if given:
        return given
    mebibytes = variable("MEM_PER_NODE", 1)
    if not mebibytes or int(mebibytes) == 0:
        sys.exit("cluster_file.py: error: how much memory is for KV? Ask for it (--mem=200G of the second component), or set "
                 "LAMINA_CAPACITY=160GiB")
    return f"{int(int(mebibytes) * share)}MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--token", required=True)
    parser.add_argument("--kv-share", type=float, default=0.8)
    flags = parser.parse_args()
    compute, memory = hosts(0), hosts(1)
    config = {
        "model": os.path.abspath(flags.model),
        "cluster_token_file": flags.token,
        "coordinator": {"listen": "0.0.0.0:0"},
        "compute": compute_nodes(compute, per_host(variable("JOB_CPUS_PER_NODE", 0), len(compute))),
        "memory": [{"name": f"m{i}", "host": host, "threads": cores, "capacity": capacity(flags.kv_share)}
                   for i, (host, cores) in enumerate(zip(memory, per_host(variable("JOB_CPUS_PER_NODE", 1), len(memory))))],
        "transport": ["verbs", "ucx"],
    }
    print(json.dumps(config, indent=1))  # JSON is YAML.


if __name__ == "__main__":
    main()
