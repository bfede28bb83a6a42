# SPDX-License-Identifier: Apache-2.0
"""The suites of docs/performance.md's tables, one after the other, into one JSON; half an hour at most.

Programs that are missing are built before the first suite. A suite has a limit of its own and is ended when it exceeds that, with all that
it has started; what it lacks then is said, and the others go on. With --only some
suites run, and the others' figures in the file stay: a machine that is quiet for minutes only can be measured in parts. Afterwards
bench/tables.py makes the tables.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import processor
from programs import ROOT, end_on_signals, need

END_SECONDS = 30  # For a suite that has been told to end its clusters.
# Name: (the most seconds, arguments). All limits together are half an hour.
SUITES = {
    "attention": (120, ["--only", "decode", "--kv-mib", "256", "--repeats", "5", "--contexts", "1024,4096"]),
    "dense": (120, ["--only", "smollm2", "--rounds", "5"]),
    "weights_int8": (240, []),
    "decode": (120, ["--rows", "1,16", "--context", "1024"]),
    "peers": (1080, ["--points", "1:1024,16:1024"]),
}
SECONDS_MAX = 1800
DAEMONS = ("lamina", "lamina-coordinator", "lamina-compute", "lamina-memory")
# What a suite runs: builds do not count against its limit.
PROGRAMS = {
    "attention": ("lamina-bench-attention",),
    "dense": ("lamina-bench-dense",),
    "weights_int8": DAEMONS,
    "decode": (*DAEMONS, "lamina-bench-bounds"),
    "peers": (*DAEMONS, "lamina-bench-bounds"),
}


def suites(text):
    names = text.split(",")
    unknown = [name for name in names if name not in SUITES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown suite {', '.join(unknown)}; known: {', '.join(SUITES)}")
    return names


def signal_group(process, number):
    """To it and all that it has started, as far as they are there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end(process):
    """Tells it and all that it has started to end; then it has END_SECONDS. What is left is killed, also of one that has ended by itself."""
    if process.poll() is None:
        signal_group(process, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
    signal_group(process, signal.SIGKILL)
    process.wait()


def run(name, seconds_max, arguments):
    """What is written of a suite; without "result" where it failed."""
    command = ["bench/run.sh", name, *(["--", *arguments] if arguments else [])]
    print(f"== {' '.join(command)}", flush=True)
    begin = time.monotonic()
    # Temporary folders of a suite lie in this one, and go with it.
    with tempfile.TemporaryDirectory(prefix="lamina-all-", ignore_cleanup_errors=True) as folder:
        path = pathlib.Path(folder) / "result.json"
        process = subprocess.Popen([ROOT / "bench/run.sh", name, "--json", path, *arguments], start_new_session=True,
                                   env={**os.environ, "TMPDIR": folder})
        try:
            code = process.wait(seconds_max)
            problem = "" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            problem = f"not done in {seconds_max} s"
        finally:
            end(process)
        found = {"command": " ".join(command), "date": str(datetime.date.today()), "seconds": round(time.monotonic() - begin, 1)}
        if not problem and path.exists():
            found["result"] = json.loads(path.read_text())
        else:
            found["problem"] = problem or "it wrote no figures"
            print(f"{name}: {found['problem']}; going on", flush=True)
    return found


def read(path):
    """What a file of this machine has already."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text())
    if found.get("machine") != processor.machine():
        raise SystemExit(f"{path} has figures of {found.get('machine')}, and this is {processor.machine()}; name another file")
    return found.get("suites", {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path, help="the file with all figures")
    parser.add_argument("--only", type=suites, default=list(SUITES), help=f"of {','.join(SUITES)}")
    arguments = parser.parse_args()
    print(f"machine {processor.machine()}", flush=True)
    kept = read(arguments.json)
    need(*dict.fromkeys(program for name in arguments.only for program in PROGRAMS[name]))
    end_on_signals()
    for name in arguments.only:
        kept[name] = run(name, *SUITES[name])
        if arguments.json:  # At once: a later one may be cut off.
            arguments.json.write_text(json.dumps({"machine": processor.machine(), "class": processor.machine_class(), "suites": kept},
                                                 indent=1) + "\n")
    problems = [name for name in arguments.only if "problem" in kept[name]]
    print(f"{len(arguments.only)} suites in {sum(kept[name]['seconds'] for name in arguments.only):.0f} s" +
          (f"; without figures: {', '.join(problems)}" if problems else ""))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
