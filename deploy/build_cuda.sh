#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles what needs nvcc: the CUDA kernels, their tests for a GPU, their benchmark, and lamina-compute
# and lamina-memory with them; with preset cuda, into build/cuda. Needs no GPU. The continuous
# integration runs it.
#
# Then deploy/check_ptx.sh compiles the kernels' PTX for cards that the build has no code for.
#
# usage: deploy/build_cuda.sh [--jobs N] [--help]
#   --jobs N   at the same time (default: as deploy/build.sh)
# Without nvcc 13 on the PATH it says so and exits with 0, having built nothing; with
# LAMINA_REQUIRE_CUDA=1 in the environment it fails.
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

arguments=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --jobs) arguments+=(--jobs "$(value_of "$@")"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

if ! command -v nvcc > /dev/null || ! nvcc --version | grep 'release 1[3-9]' > /dev/null; then
  found=$(command -v nvcc || echo 'none')
  [[ ${LAMINA_REQUIRE_CUDA:-0} != 1 ]] || fail "nvcc 13 or later is not on the PATH (found: $found)"
  say "left out: the CUDA kernels, cuda_gpu_test, cuda_node_gpu_test and cuda_ipc_gpu_test are not compiled; nvcc 13 or later is not on the PATH (found: $found)"
  exit 0
fi
"$REPO/deploy/build.sh" --preset cuda --target lamina_gpu_tests --target lamina-gpu-bench --target lamina-compute --target lamina-memory "${arguments[@]}"
exec "$REPO/deploy/check_ptx.sh" "${arguments[@]}"
