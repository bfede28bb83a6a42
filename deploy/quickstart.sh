#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# From a bare Debian 12 to streamed text: installs packages, gets the model, builds, starts a cluster of
# one compute process and two memory processes on this machine, answers a prompt, shows what each
# node did, and stops the cluster. A second run takes seconds.
#
# usage: deploy/quickstart.sh [--keep] [--prompt TEXT] [--set KEY=VALUE]... [--help]
#   --keep            leave the cluster running, and say what to type next
#   --prompt TEXT     the question (default: one about the sky)
#   --set KEY=VALUE   override a key of deploy/clusters/local.yaml, like gateway.listen=127.0.0.1:0 where
#                     port 8000 is in use; it says so of all ports that are
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

keep=false
prompt="Why is the sky blue? Answer in two sentences."
overrides=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --keep) keep=true ;;
    --prompt) prompt=$(value_of "$@"); shift ;;
    --set) overrides+=(--set "$(value_of "$@")"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

cluster=$REPO/deploy/clusters/local.yaml
lamina=$REPO/build/release/bin/lamina

# first_cores: the first two cores that this process may use, "A B"; "A A" when there is one.
first_cores() {
  local list part cores=()
  list=$(awk '/^Cpus_allowed_list/ {print $2}' /proc/self/status)
  for part in ${list//,/ }; do
    mapfile -t -O "${#cores[@]}" cores < <(seq "${part%-*}" "${part#*-}")
  done
  echo "${cores[0]} ${cores[1]:-${cores[0]}}"
}

# bring_up: starts the cluster, with what this machine needs said differently from the cluster file.
bring_up() {
  local fit=() core_a core_b
  read -r core_a core_b < <(first_cores)
  if [[ "$core_a $core_b" != "0 1" ]]; then
    fit+=(--set "compute.c0.cores=$core_a" --set "memory.m0.cores=$core_b" --set "memory.m1.cores=$core_b")
  fi
  if (($(awk '/MemAvailable/ {print int($2 / 1e6)}' /proc/meminfo) < 7)); then
    say "little memory is free: the memory nodes get 512 MiB each"
    fit+=(--set memory.m0.capacity=512MiB --set memory.m1.capacity=512MiB)
  fi
  "$REPO/deploy/cluster.sh" up --cluster "$cluster" "${fit[@]}" "${overrides[@]}"
}

"$REPO/deploy/install_packages.sh"
"$REPO/deploy/get_model.sh"
"$REPO/deploy/build.sh" --target lamina --target lamina-coordinator --target lamina-compute \
  --target lamina-memory --target lamina-gateway

runs=false
if "$REPO/deploy/cluster.sh" status --cluster "$cluster" > /dev/null 2>&1; then
  runs=true
  keep=true # It ran before us: it is not ours to stop.
fi
# One that runs keeps its settings, unless others are asked for: by the memory that is free now, less what it
# took itself, they would be others.
if $runs && ((${#overrides[@]} == 0)); then
  say "the cluster runs already"
else
  say "starting the cluster"
  bring_up
fi
if ! $keep; then
  trap '"$REPO/deploy/cluster.sh" down --cluster "$cluster"' EXIT
fi
# The user may work with another cluster: its address, and its CA where this one has no TLS, are not this one's.
users_server=${LAMINA_SERVER:-127.0.0.1:7400} users_ca=${LAMINA_TLS_CA:-}
LAMINA_SERVER=$(cat "$REPO/run/local/address")
export LAMINA_SERVER
grep -q '^tls:' "$REPO/run/local/cluster.yaml" || unset LAMINA_TLS_CA

say "asking: $prompt"
"$lamina" generate --chat --prompt "$prompt" --max-tokens 80
say "what each node did"
"$lamina" status

if $keep; then
  # Without these, the command looks at its default, or at that other cluster.
  server=
  [[ $LAMINA_SERVER == "$users_server" ]] || server+=$'\n'"  export LAMINA_SERVER=$LAMINA_SERVER"
  [[ ${LAMINA_TLS_CA:-} == "$users_ca" ]] || server+=$'\n'"  unset LAMINA_TLS_CA"
  if gateway=$(cat "$REPO/run/local/gateway.ready" 2> /dev/null); then
    curl=$'\n'"  curl http://$gateway/v1/chat/completions -H 'Content-Type: application/json' \\"$'\n'
    curl+="    -d '{\"model\": \"smollm2-135m-instruct\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'"
  fi
  cat << EOF

The cluster runs at $LAMINA_SERVER. Try:$server
  build/release/bin/lamina chat
  build/release/bin/lamina generate --prompt "The capital of France is" --max-tokens 20
  build/release/bin/lamina bench --concurrency 8 --requests 32
  build/release/bin/lamina status${curl:-}
  deploy/cluster.sh down
EOF
fi
