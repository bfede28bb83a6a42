# SPDX-License-Identifier: Apache-2.0
"""The suites of docs/performance.md's tables, one after the other, into one JSON; half an hour at most. With --long all points and shapes
for which a figure is asked for, in six hours at most: bench/summary.py makes one table of them.

Programs that are missing are built before the first suite. A suite has a limit of its own and is ended when it exceeds that, with all that
it has started; what it wrote until then is taken, what it lacks is said, and the others go on. The peers, the last, have what the
others leave of the time. With --only some suites run, and the others' figures in the file stay: a machine that is quiet for minutes
only can be measured in parts. Afterwards bench/tables.py makes the page's tables.
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
DECODE_ATTENTION = ["--only", "decode", "--kv-mib", "256", "--repeats", "5", "--contexts", "1024,4096"]
# Name: (the most seconds, arguments). All limits together are half an hour, those of LONG_SUITES six.
SUITES = {
    "attention": (75, DECODE_ATTENTION),
    "attention_auto": (75, ["--kernel", "auto", *DECODE_ATTENTION]),
    "dense": (120, ["--only", "smollm2", "--rounds", "5"]),
    "weights_int8": (240, []),
    "decode": (150, ["--points", "1:1024,16:1024"]),
    "peers": (1140, ["--points", "1:1024,16:1024"]),
}
LONG_SUITES = {
    "attention": (300, DECODE_ATTENTION),
    "attention_auto": (300, ["--kernel", "auto", *DECODE_ATTENTION]),
    "dense": (1200, ["--rounds", "5"]),
    "weights_int8": (600, []),
    "sampling": (600, []),
    "threads": (900, []),
    "decode": (2400, []),
    "peers": (14400, ["--points", "1:1024,4:1024,16:1024,64:512,64:1024,32:2048,1:4096,16:4096",
                      "--systems", "lamina,local,local_bf16,auto,llama.cpp,vLLM"]),
}
LAST = "peers"  # It is told how many seconds there are, and begins no turn for which these do not suffice.
SECONDS_MAX, LONG_SECONDS_MAX = 1800, 6 * 3600
# What bench/run.sh calls a suite, where it is another name.
CALLED = {"attention_auto": "attention"}
DAEMONS = ("lamina", "lamina-coordinator", "lamina-compute", "lamina-memory")
# What a suite runs: builds do not count against its limit.
PROGRAMS = {
    "attention": ("lamina-bench-attention",),
    "attention_auto": ("lamina-bench-attention",),
    "dense": ("lamina-bench-dense",),
    "weights_int8": DAEMONS,
    "sampling": DAEMONS,
    "threads": DAEMONS,
    "decode": (*DAEMONS, "lamina-bench-bounds"),
    "peers": (*DAEMONS, "lamina-bench-bounds"),
}


def signal_group(process, number):
    """To it and all that it has started, as far as they are there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end(process):
    """Tells it and all that it has started to end; then it has END_SECONDS. What is left is killed, also of one that has ended by itself."""
    try:
        if process.poll() is None:
            signal_group(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
    finally:  # Whoever loses patience ends this wait, and leaves nothing either.
        signal_group(process, signal.SIGKILL)
        process.wait()


def run(name, seconds_max, arguments):
    """What is written of a suite; with "problem" where it failed, and without "result" where it wrote nothing before it did."""
    called = CALLED.get(name, name)
    command = ["bench/run.sh", called, *(["--", *arguments] if arguments else [])]
    print(f"== {' '.join(command)}", flush=True)
    begin = time.monotonic()
    # Temporary folders of a suite lie in this one, and go with it.
    with tempfile.TemporaryDirectory(prefix="lamina-all-", ignore_cleanup_errors=True) as folder:
        path = pathlib.Path(folder) / "result.json"
        process = subprocess.Popen([ROOT / "bench/run.sh", called, "--json", path, *arguments], start_new_session=True,
                                   env={**os.environ, "TMPDIR": folder})
        try:
            code = process.wait(seconds_max)
            problem = "" if code == 0 else f"exit status {code}"
        except subprocess.TimeoutExpired:
            problem = f"not done in {seconds_max} s"
        finally:
            end(process)
        found = {"command": " ".join(command), "date": str(datetime.date.today()), "seconds": round(time.monotonic() - begin, 1)}
        with contextlib.suppress(OSError, ValueError):  # It was ended before it wrote, or while it did.
            found["result"] = json.loads(path.read_text())
        if problem or "result" not in found:
            found["problem"] = problem or "it wrote no figures"
            kept = "; what it wrote before is kept" if "result" in found else ""
            print(f"{name}: {found['problem']}{kept}; going on", flush=True)
    return found


def limits_of(suites, name, spent):
    """The most seconds of a suite when so many are spent, and its arguments."""
    seconds_max, arguments = suites[name]
    if name != LAST:
        return seconds_max, arguments
    seconds_max = max(END_SECONDS + 1, int(sum(limit for limit, _ in suites.values()) - spent))
    return seconds_max, [*arguments, "--seconds", str(seconds_max - END_SECONDS)]


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
    parser.add_argument("--long", action="store_true", help="all points and shapes for which a figure is asked for")
    parser.add_argument("--only", help=f"of {','.join(SUITES)}; with --long of {','.join(LONG_SUITES)} (default: all of these)")
    arguments = parser.parse_args()
    suites = LONG_SUITES if arguments.long else SUITES
    names = arguments.only.split(",") if arguments.only is not None else list(suites)
    unknown = [name for name in names if name not in suites]
    if unknown:
        parser.error(f"--only: unknown suite {', '.join(unknown)}; known: {', '.join(suites)}")
    print(f"machine {processor.machine()}", flush=True)
    kept = read(arguments.json)
    need(*dict.fromkeys(program for name in names for program in PROGRAMS[name]))
    end_on_signals()
    spent = 0.0
    for name in names:
        kept[name] = run(name, *limits_of(suites, name, spent))
        spent += kept[name]["seconds"]
        if arguments.json:  # At once: a later one may be cut off.
            arguments.json.write_text(json.dumps({"machine": processor.machine(), "class": processor.machine_class(), "suites": kept},
                                                 indent=1) + "\n")
    problems = [name for name in names if "problem" in kept[name]]
    words = f"{len(names)} suites in {spent:.0f} s"
    for what, some in (("without figures", [name for name in problems if "result" not in kept[name]]),
                        ("with a part of their figures", [name for name in problems if "result" in kept[name]])):
        words += f"; {what}: {', '.join(some)}" if some else ""
    print(words)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
