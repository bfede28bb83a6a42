# SPDX-License-Identifier: Apache-2.0
"""A load over the gateway's HTTP against the same load straight over gRPC, in turns on one cluster.

Both clients send the same prompts in a closed loop and stream the answers: `lamina bench` over gRPC,
lamina-bench-gateway over HTTP. Rounds alternate, so that a disturbance hits both; the ratio is that of
the medians. The gateway's own processor time for a token stands next to it. With --batch it is `lamina batch`
against `lamina bench` instead.

The compute node has core 0, the memory node core 1. The coordinator, the gateway and both clients run where the
kernel puts them; --cores 1 keeps them on the core of the memory node.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import cluster
import processor
from programs import program

MODEL = cluster.MODEL.stem
LIMIT_SECONDS = 600
LANES = 2


class GatewayCluster(cluster.Cluster):
    """With a gateway; `cores` are for it, the coordinator and the clients, empty for any."""

    def __init__(self, running_max, cores, **keys):
        super().__init__(lanes=LANES, running_max=max(running_max, LANES), memory_nodes=1, coordinator_cores=cores, **keys)
        self.gateway = f"127.0.0.1:{cluster.free_port()}"
        self.model = MODEL
        self.client = ["taskset", "-c", cores] if cores else []
        with open(self.config, "a", encoding="utf-8") as out:
            out.write(f'gateway: {{listen: {self.gateway}, model_names: {MODEL}, cores: "{cores}"}}\n')
        self.names.append(("lamina-gateway", "gateway"))

    def gateway_seconds(self):
        """Processor time that the gateway has used so far."""
        fields = pathlib.Path(f"/proc/{self.processes[-1].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class RemoteGateway(cluster.Remote):
    """A cluster and its gateway that serve; the gateway's processor time is not seen from here."""

    def __init__(self, arguments):
        super().__init__(arguments.server)
        self.gateway = arguments.gateway
        self.client = ["taskset", "-c", arguments.cores] if arguments.cores else []

    def __enter__(self):
        super().__enter__()
        self.model = self.status()["model"]
        return self

    def gateway_seconds(self):
        return None


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False,
                          timeout=LIMIT_SECONDS)
    if done.returncode != 0:
        raise RuntimeError(f"{command}: {done.stderr[-1000:]}")
    return done.stdout


def grpc(running, load):
    report = json.loads(run(*running.client, program("lamina"), "bench", "--json", "--server", running.address,
                            *load))
    return report["output_tokens_per_second"], report["tpot_ms"]


def http(running, load):
    before = running.gateway_seconds()
    report = json.loads(run(*running.client, program("lamina-bench-gateway"), "--server", running.gateway,
                            "--model", running.model, *load))
    if before is not None:
        report["tpot_ms"]["gateway_us"] = 1e6 * (running.gateway_seconds() - before) / report["output_tokens"]
    return report["output_tokens_per_second"], report["tpot_ms"]


def batch(running, load):
    keys = dict(zip(load[::2], load[1::2]))
    lines, answers = running.answers / "batch.jsonl", running.answers / "answers.jsonl"
    answers.unlink(missing_ok=True)
    prompt = list(range(1000, 1000 + int(keys["--input-tokens"])))
    lines.write_text("".join(json.dumps({
        "custom_id": f"r{i}", "method": "POST", "url": "/v1/completions",
        "body": {"model": running.model, "prompt": [p + i for p in prompt], "temperature": 0, "ignore_eos": True,
                 "max_tokens": int(keys["--output-tokens"])}}) + "\n" for i in range(int(keys["--requests"]))))
    report = json.loads(run(*running.client, program("lamina"), "batch", "--json", "--input", lines, "--output",
                            answers, "--concurrency", keys["--concurrency"], "--server", running.address))
    return report["output_tokens_per_second"], None  # Its answers come whole.


def tpot_of(times):
    """The median of the rounds; None where a way tells no times."""
    return None if None in times else {p: statistics.median(t[p] for t in times) for p in ("p50", "p99")}


def in_words(tpot):
    return f"{'-':>11} {'':9}" if tpot is None else f"{tpot['p50']:11.2f}/{tpot['p99']:9.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the rows here")
    parser.add_argument("--concurrency", default="1,64,512")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument("--input-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="", help="of the coordinator, the gateway and the clients; none for any")
    parser.add_argument("--batch", action="store_true", help="`lamina batch` instead of the gateway")
    cluster.add_server(parser)
    parser.add_argument("--gateway", metavar="HOST:PORT", help="with --server: its gateway")
    arguments = parser.parse_args()
    if arguments.server and not arguments.gateway and not arguments.batch:
        parser.error("--server: give its gateway's address too, --gateway HOST:PORT")
    other = batch if arguments.batch else http
    points = [int(part) for part in arguments.concurrency.split(",")]
    rows = []
    print(f"machine   {processor.machine()}")
    print(f"{'in flight':>9} {'gRPC tok/s':>11} {other.__name__ + ' tok/s':>11} {'ratio':>6}"
          f" {'gRPC tpot p50/p99 ms':>22} {other.__name__ + ' tpot p50/p99 ms':>22}")
    where = RemoteGateway(arguments) if arguments.server else GatewayCluster(max(points), arguments.cores)
    with where as running, tempfile.TemporaryDirectory(prefix="lamina-gateway-") as folder:
        running.answers = pathlib.Path(folder)
        for point in points:
            load = ["--concurrency", str(point), "--requests", str(max(point, 16)), "--input-tokens",
                    str(arguments.input_tokens), "--output-tokens", str(arguments.tokens)]
            results = {grpc: [], other: []}
            for turn in range(arguments.rounds):
                for way in (grpc, other) if turn % 2 == 0 else (other, grpc):
                    results[way].append(way(running, load))
            rate = {way: statistics.median(r for r, _ in found) for way, found in results.items()}
            tpot = {way: tpot_of([times for _, times in found]) for way, found in results.items()}
            row = {"concurrency": point, "grpc_tokens_per_second": rate[grpc], "tokens_per_second": rate[other],
                   "ratio": rate[other] / rate[grpc], "grpc_tpot_ms": tpot[grpc], "tpot_ms": tpot[other],
                   "rounds": {way.__name__: [r for r, _ in found] for way, found in results.items()}}
            cpu = [times["gateway_us"] for _, times in results[other] if times and "gateway_us" in times]
            row["gateway_us_per_token"] = statistics.median(cpu) if cpu else None
            rows.append(row)
            print(f"{point:9} {rate[grpc]:11.1f} {rate[other]:11.1f} {row['ratio']:6.3f}"
                  f" {in_words(tpot[grpc])} {in_words(tpot[other])}"
                  f"   rounds {' '.join(f'{a:.0f}:{b:.0f}' for a, b in zip(*row['rounds'].values()))}"
                  + (f"   gateway {row['gateway_us_per_token']:.0f} us/token" if cpu else ""), flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"machine": processor.machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
