#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles the kernels' PTX for compute capability 8.0 to the machine code of cards that the build
# has none for, as their drivers do when they load it. Needs ptxas and nvcc 13, and no GPU.
#
# usage: deploy/check_ptx.sh [--jobs N] [--help]
#   --jobs N   at the same time (default: as many as there are processors)
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

jobs=$(nproc)
while [[ $# -gt 0 ]]; do
  case $1 in
    --jobs) jobs=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

ARCHITECTURES=(sm_89 sm_100 sm_120)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The flags are those of cmake/LaminaTargets.cmake.
# The inner shells expand what single quotes keep.
# shellcheck disable=SC2016
printf '%s\n' "$REPO"/kernels/cuda/*.cu | xargs -P "$jobs" -I{} sh -c \
  'nvcc -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr -I"$1" -arch=compute_80 -ptx "$2" -o "$3/$(basename "$2" .cu).ptx"' \
  sh "$REPO" {} "$folder" || fail "nvcc failed"
# shellcheck disable=SC2016
for architecture in "${ARCHITECTURES[@]}"; do
  for ptx in "$folder"/*.ptx; do
    printf '%s %s\n' "$architecture" "$ptx"
  done
done | xargs -P "$jobs" -L 1 sh -c 'ptxas -O3 -arch="$1" "$2" -o /dev/null' sh || fail "ptxas failed"
say "the PTX of $(find "$folder" -name '*.ptx' | wc -l) files compiles for ${ARCHITECTURES[*]}"
