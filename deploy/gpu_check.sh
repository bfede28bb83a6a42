#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks the CUDA kernels on the GPU of this machine and measures them: device facts, unit tests,
# clusters with memory nodes on the GPU and with compute nodes on it, nodes whose device waits for
# windows itself, both attention kernels (decode as a share of the copy bandwidth, and a chunk of a
# prompt), dense layers against cuBLASLt's free choice, a slice by launches and as a graph, rows stored in one launch and two, polling round
# trips, windows in the GPU's memory between two processes, and a model served end to end (deploy/gpu_serve.py:
# one pool, then two with the memory node on the GPU, then on the CPU); by name alone also models with random
# weights compared with PyTorch (deploy/gpu_torch.py), and attention by others (deploy/gpu_peers.py). Each step writes its own file when it is done, so what finished
# is kept when the rest is cut off; of tests (deploy/gpu_tests.py) what ran, too.
#
# usage: deploy/gpu_check.sh [--step S]... [--out DIR] [--limit SECONDS] [--total SECONDS] [--model FILE]
#                            [--list] [--help]
#   --step S         only this step; repeat for more: facts, tests, nodes, compute, waits,
#                    attention, linear, slice, store, polling, ipc, serve, torch, peers
#   --out DIR        where results go (default: gpu_check in the working directory), next to those of earlier runs;
#                    a step that runs again begins with none, and a folder with another card's is refused
#   --limit SECONDS  for each step (default: 75, ipc 60, torch and peers all that is left of the total)
#   --total SECONDS  for all; steps that no time is left for are left out (default: 460)
#   --model FILE     what serve serves (default: models/smollm2-135m-instruct.gguf; where that is not, serve
#                    is left out unless it is named)
#   --list           print the steps
# Without --step all of them, in this order, but torch and peers, which want a Python with PyTorch: python3, or
# what LAMINA_TORCH_PYTHON names. torch makes and serves two models of 13 and 16 GB, which takes a run of its own.
# Runs what preset cuda built, or, inside a bundle (deploy/bundle.sh --cuda), the bundle's programs.
# Results: DIR/STEP.json, DIR/STEP.log, and all in DIR/gpu_check.json; of slice, attention and linear also
# DIR/calibration.json, times for a planner (docs/formats/calibration.md).
# Exit status: 0 every step passed; 1 one failed, or the folder is another card's; 3 there is no CUDA device, and nothing was run.
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kernel_steps=(facts tests nodes compute waits attention linear slice store polling ipc)
all_steps=("${kernel_steps[@]}" serve torch peers)
steps=()
out=gpu_check
limit=
total=460
model=$REPO/models/smollm2-135m-instruct.gguf
while [[ $# -gt 0 ]]; do
  case $1 in
    --step)
      step=$(value_of "$@")
      [[ " ${all_steps[*]} " == *" $step "* ]] || usage_error "--step is one of ${all_steps[*]}, not '$step'"
      steps+=("$step")
      shift
      ;;
    --out) out=$(value_of "$@"); shift ;;
    --limit) limit=$(value_of "$@"); shift ;;
    --total) total=$(value_of "$@"); shift ;;
    --model) model=$(value_of "$@"); shift ;;
    --list) printf '%s\n' "${all_steps[@]}"; exit 0 ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
torch_limit=${limit:-$total}
ipc_limit=${limit:-60}
limit=${limit:-75}
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage_error "--limit is a number of seconds, not '$limit'"
[[ $total =~ ^[1-9][0-9]*$ ]] || usage_error "--total is a number of seconds, not '$total'"
if [[ ${#steps[@]} -eq 0 ]]; then
  steps=("${kernel_steps[@]}")
  if [[ -e $model ]]; then
    steps+=(serve)
  else
    say "serve: left out, $model is not there; --model names another"
  fi
fi

# The programs: next to this script in a bundle, else from the build folder.
if [[ -x $REPO/run && -d $REPO/gpu ]]; then
  run=("$REPO/run")
  test_program=gpu/cuda_gpu_test
  node_program=gpu/cuda_node_gpu_test
  ipc_program=gpu/cuda_ipc_gpu_test
  bench_program=gpu/lamina-gpu-bench
else
  run=(env)
  test_program=$REPO/build/cuda/tests/cuda_gpu_test
  node_program=$REPO/build/cuda/tests/cuda_node_gpu_test
  ipc_program=$REPO/build/cuda/tests/cuda_ipc_gpu_test
  bench_program=$REPO/build/cuda/bin/lamina-gpu-bench
  for program in "$test_program" "$node_program" "$ipc_program" "$bench_program"; do
    [[ -x $program ]] || fail "$program is not built; build it: deploy/build_cuda.sh"
  done
fi

mkdir -p "$out"
out=$(CDPATH='' cd "$out" && pwd)
# As the daemons do (daemon/daemon.h): streams whose kernels poll each want a queue of the driver.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-32}

# One step; its JSON object goes to STEP.json. Returns the program's exit status; 124: the time was up.
run_step() {
  local step=$1 status=0 started=$SECONDS program=$test_program filter seconds=$limit
  [[ $step != torch && $step != peers ]] || seconds=$torch_limit
  [[ $step != ipc ]] || seconds=$ipc_limit
  ((SECONDS + seconds <= total)) || seconds=$((total - SECONDS))
  if ((seconds < 1)); then
    say "$step: left out, $total s are up"
    return 124
  fi
  # What an earlier run left is none of this one's. But facts stay until there are new ones: they say of
  # which card all else is.
  rm -f "$out/$step.json.part"
  [[ $step == facts ]] || rm -f "$out/$step.json"
  case $step in
    tests | nodes | compute | waits)
      [[ $step == tests ]] || program=$node_program
      case $step in
        nodes) filter='*CudaNodeTest*:*CudaWindows*' ;;
        compute) filter='-*CudaNodeTest*:*CudaWindows*:*Waits*' ;;
        waits) filter='*Waits*' ;;
        *) filter='*' ;;
      esac
      python3 "$REPO/deploy/gpu_tests.py" --limit "$seconds" "--filter=$filter" -- "${run[@]}" "$program" \
        > "$out/$step.json.part" 2> "$out/$step.log" || status=$?
      ;;
    ipc)
      # Each child of a test opens the device, so that tests with many have fewer rounds.
      LAMINA_CONFORMANCE_DIVISOR=${LAMINA_CONFORMANCE_DIVISOR:-10} python3 "$REPO/deploy/gpu_tests.py" \
        --limit "$seconds" -- "${run[@]}" "$ipc_program" > "$out/$step.json.part" 2> "$out/$step.log" || status=$?
      ;;
    serve)
      # It writes after each result, so what finished is there when it is cut off.
      timeout --kill-after=5 "$seconds" python3 "$REPO/deploy/gpu_serve.py" --model "$model" --limit "$seconds" \
        --out "$out/$step.json.part" > "$out/$step.log" 2>&1 || status=$?
      ;;
    torch)
      timeout --kill-after=5 "$seconds" "${LAMINA_TORCH_PYTHON:-python3}" "$REPO/deploy/gpu_torch.py" \
        --limit "$seconds" --out "$out/$step.json.part" > "$out/$step.log" 2>&1 || status=$?
      ;;
    peers)
      timeout --kill-after=5 "$seconds" "${LAMINA_TORCH_PYTHON:-python3}" "$REPO/deploy/gpu_peers.py" \
        --out "$out/$step.json.part" > "$out/$step.log" 2>&1 || status=$?
      ;;
    *)
      timeout --kill-after=5 "$seconds" "${run[@]}" "$bench_program" "$step" \
        > "$out/$step.json.part" 2> "$out/$step.log" || status=$?
      ;;
  esac
  if [[ -s $out/$step.json.part ]]; then
    mv "$out/$step.json.part" "$out/$step.json"
  else
    rm -f "$out/$step.json.part"
  fi
  say "$step: $([[ $status == 0 ]] && echo passed || echo "failed, exit status $status") after $((SECONDS - started)) s"
  return "$status"
}

# All results so far in one file, and a table of them.
collect() {
  python3 - "$out" "${all_steps[@]}" <<'PY'
import json, pathlib, sys

folder = pathlib.Path(sys.argv[1])
results = {}
for step in sys.argv[2:]:
    path = folder / f"{step}.json"
    if path.exists():
        try:
            results[step] = json.loads(path.read_text())
        except ValueError as error:
            print(f"{step:12}{path.name} is damaged, and left out: {error}")
(folder / "gpu_check.json").write_text(json.dumps(results, indent=1) + "\n")
if "facts" in results:
    f = results["facts"]
    print(f"device      {f['name']}, compute capability {f['compute_capability']}, copy {f['copy_gb_per_s']} GB/s")
for step in ("tests", "nodes", "compute", "waits", "ipc"):
    if step in results:
        t = results[step]
        left = f", {len(t['left'])} left" if t["left"] else ""
        print(f"{step:12}{t['tests']} run, {t['failures']} failed{left} {' '.join(t['failed'])}".rstrip())
for s in results.get("attention", {}).get("shapes", []):
    aim = " (aim 0.92)" if s["rows"] == 64 and s["context"] == 4096 else ""
    print(f"attention   {s['kernel']:9} head {s['head_dim']:3}, group {s['group']:2}, {s['rows']:3} rows at {s['context']:5}: {s['ms']:.4f} ms, "
          f"{s['gb_per_s']} GB/s, {s['share_of_copy']:.3f} of copy{aim}")
for s in results.get("attention", {}).get("small", []):
    print(f"attention   {s['kernel']:9} head {s['head_dim']:3}, group {s['group']:2}, {s['rows']:3} rows at {s['context']:5}: {s['ms']:.4f} ms, "
          f"two empty launches {s['empty_ms']:.4f} ms")
for s in results.get("attention", {}).get("prefill", []):
    print(f"prompts     {s['kernel']:9} head {s['head_dim']:3}, group {s['group']:2}: {s['tokens']:4} tokens at {s['context']:5} in {s['ms']:.3f} ms, {s['tflop_per_s']} TFLOP/s")
for s in results.get("linear", {}).get("shapes", []):
    print(f"linear      {s['layer']:14} {s['rows']:4} rows: {s['ms']:.4f} ms, {s['ratio']:.3f} of cuBLASLt")
for m in results.get("slice", {}).get("models", []):
    for s in m["rows"]:
        print(f"slice       {m['model']:14} {s['rows']:4} rows: launches {s['launches_us']} us, graph {s['graph_us']} us; "
              f"calls {s['launches_calls_us']} us, {s['graph_calls_us']} us")
    print(f"slice       {m['model']:14} recording {m['record_us']} us, {m['graph_bytes']} bytes a graph")
for layer in results.get("store", {}).get("layers", []):
    for s in layer["rows"]:
        print(f"store       {layer['model']:14} {layer['kernel']:9} {s['rows']:4} rows: rope, store, attention in one call {s['one_call_ordinary_us']} us, "
              f"in two {s['two_calls_ordinary_us']} us; dependent {s['one_call_dependent_us']} us, {s['two_calls_dependent_us']} us; empty launches {s['empty_us']} us")
if "store" in results:
    print(f"store       {results['store']['launches']}")
for part in results.get("serve", {}).get("parts", []):
    memory = " and ".join(part["memory"]) or part["compute"]
    where = f"serve       {part['part']}, compute on {part['compute']}, memory on {memory}"
    print(f"{where}: serves after {part['start_s']} s, answers {part['answer']!r}")
    for s in part["points"]:
        print(f"{where}: {s['rows']:4} rows at {s['context']}: {s['tokens_per_s']} tokens/s")
    if part["error"]:
        print(f"{where}: failed, {part['error'].splitlines()[0]}")
for shape in results.get("torch", {}).get("shapes", []):
    parts = [(by, shape.get(by, {})) for by in ("torch", "transformers")]
    for by, part in parts + [(f"lamina, {part['part']}", part) for part in shape.get("lamina", [])]:
        for s in part.get("points", []):
            print(f"torch       {shape['shape']:10} {by:14} {s['rows']:4} rows at {s['context']}: {s['tokens_per_s']} tokens/s")
    for s in shape.get("ratios", []):
        print(f"torch       {shape['shape']:10} {s['rows']:4} rows at {s['context']}: Lamina, {s['part']}: {s['lamina_to_torch']} of PyTorch's loop")
for s in results.get("peers", {}).get("results", []):
    if "error" in s:
        print(f"peers       {s['peer']}: {s['error'].splitlines()[0]}")
    elif s["kind"] == "decode":
        print(f"peers       {s['peer']:10} decode, {s['rows']:3} rows at {s['context']:5}: {s['ms']:.4f} ms, {s['gb_per_s']:.1f} GB/s")
    else:
        print(f"peers       {s['peer']:10} {s['tokens']:4} tokens at {s['context']:5} in {s['ms']:.3f} ms, {s['tflop_per_s']:.1f} TFLOP/s")
if "polling" in results:
    p = results["polling"]
    print(f"polling     device {p['device_polls_us']} us, host {p['host_polls_us']} us a round trip")
    for u in p["units"]:
        print(f"polling     {u['rows']:4} rows out and back: by the device {u['device_us']} us, by the host {u['host_us']} us")
PY
}

# calibration.json, if one of the steps it is made of has left results.
calibrate() {
  rm -f "$out/calibration.json"
  [[ -f $out/slice.json || -f $out/attention.json || -f $out/linear.json ]] || return 0
  python3 "$REPO/deploy/gpu_calibration.py" "$out"
}

# The card's name in a text of facts; nothing, where it is damaged.
card_of() {
  python3 -c 'import json, sys; print(json.loads(sys.argv[1])["name"])' "$1" 2> /dev/null || true
}

# Whether there is a device, before anything else: the facts step says so with status 77.
old_facts=$(cat "$out/facts.json" 2> /dev/null || true)
set +e
run_step facts
status=$?
set -e
if [[ $status == 77 ]]; then
  cat "$out/facts.log" >&2
  rm -f "$out/facts.log"
  printf '%s: no CUDA device on this machine; nothing was checked\n' "$(basename "$0")" >&2
  exit 3
fi
if [[ -n $old_facts ]]; then
  card=$(card_of "$(cat "$out/facts.json")")
  old_card=$(card_of "$old_facts")
  if [[ $status != 0 || -z $card || $card != "$old_card" ]]; then
    printf '%s\n' "$old_facts" > "$out/facts.json"
    [[ $status == 0 ]] || fail "facts failed ($out/facts.log), so that nobody knows whether --out $out holds results of this card; name another folder"
    fail "--out $out holds results of ${old_card:-an unknown card}, and this is ${card:-an unknown card}; name another folder"
  fi
fi
failed=0
for step in "${steps[@]}"; do
  if [[ $step == facts ]]; then
    [[ $status == 0 ]] || failed=1
  else
    run_step "$step" || failed=1
  fi
  collect > "$out/table.txt"
  case $step in
    # Each time, so that it is there when the rest is cut off.
    slice | attention | linear) calibrate || failed=1 ;;
  esac
done
cat "$out/table.txt"
exit "$failed"
