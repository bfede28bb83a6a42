# SPDX-License-Identifier: Apache-2.0
"""HeadInfer's Table 14 on this machine: half of the KV heads stream, against all of them whole, by the same nodes over the same link.

The link is slowed down until it is what a step waits for, as PCIe is what the paper's decode steps wait for: the share of its bandwidth that was
used says whether it was. Every second head streams: a choice that costs the time of any other one, and says nothing of answers.
"""

import json
import pathlib
import re
import time

from paper_shared import Steps, requests

KIB = 2**10
PAPER = {"prompt": (2054, 1152), "token": (6.51, 3.28)}  # Seconds at 1M tokens.
ASKED = {"prompt": 1.6, "token": 1.8}
SINK, WINDOW = 64, 256
CHUNK = 32  # Rows of a prompt in a step: so few that K and V of all tokens before them take longer than their attention.


def write_every_second(path, shape):
    """A file of heads that stream: the odd ones of every layer."""
    odd = list(range(1, shape.kv_heads, 2))
    path.write_text(json.dumps({"format": 1, "model": {"layers": shape.layers, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim},
                                "streaming": [{"layer": layer, "heads": odd} for layer in range(shape.layers)]}))


def bytes_a_second(text):
    number, unit = re.fullmatch(r"([0-9.]+)(MB|GB)", text).groups()
    return float(number) * {"MB": 1e6, "GB": 1e9}[unit]


def sent(running):
    return next(node["bytes_sent"] for node in running.status()["nodes"] if node["name"] == "m0")


def measure(running, context, decoded):
    """Seconds of the prompt and of a token, and bytes a second that came over all of it."""
    before, start = sent(running), time.monotonic()
    report = requests(running, 1, context, decoded)
    seconds = time.monotonic() - start
    time.sleep(1)  # Nodes report twice a second.
    return {"prompt": report["ttft_ms"]["p50"] / 1e3, "token": report["tpot_ms"]["p50"] / 1e3,
            "rate": (sent(running) - before) / seconds}


def run(make_cluster, folder, shape, context, decoded, bandwidth):
    """`make_cluster(heads, longest, transport, fetch keys, ...)` as Bench.cluster(). {"whole" or "half": what measure() says}"""
    heads = pathlib.Path(folder) / "every_second_head.json"
    write_every_second(heads, shape)
    longest = context * KIB + 2 * decoded
    streaming = {"streaming_heads": str(heads), "streaming_sink": SINK, "streaming_window": WINDOW}
    found, steps = {}, Steps(2)
    for name, keys in (("whole", {}), ("half", streaming)):
        steps.say({"whole": "all heads whole", "half": "half streaming"}[name])
        with make_cluster("auto", longest, more=keys, transport=f"throttle(bandwidth={bandwidth})+shm", chunk_tokens=CHUNK, scratch_tokens=CHUNK) as running:
            measure(running, KIB, decoded)  # Memory is touched for the first time.
            found[name] = measure(running, context * KIB, decoded)
            print(f"  {name}: prompt {found[name]['prompt']:.2f} s, token {1e3 * found[name]['token']:.1f} ms, "
                  f"{found[name]['rate'] / bytes_a_second(bandwidth):.0%} of the link's bandwidth", flush=True)
    return found


def rows_and_verdicts(found):
    """Rows of the table: seconds whole and half, ratio, the paper's, and the verdict."""
    rows = []
    for which, label in (("prompt", "prompt"), ("token", "decoded token")):
        whole, half = found["whole"][which], found["half"][which]
        paper = PAPER[which][0] / PAPER[which][1]
        holds = whole / half >= ASKED[which]
        rows.append([label, f"{whole:.3g} s", f"{half:.3g} s", f"{whole / half:.2f}", f"{paper:.2f}", f"{ASKED[which]:g}", "reproduced" if holds else "not reproduced"])
    return rows
