#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Lamina into build/PRESET. Says little: one line, and the errors.
#
# usage: deploy/build.sh [--preset P] [--target T]... [--jobs N] [--help]
#   --preset P   release (default), debug, asan, tsan
#   --target T   build only this; repeat for more (default: everything)
#   --jobs N     at the same time (default: one per core, fewer when memory is short)
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=release
targets=()
jobs=
while [[ $# -gt 0 ]]; do
  case $1 in
    --preset) preset=$(value_of "$@"); shift ;;
    --target) targets+=(--target "$(value_of "$@")"); shift ;;
    --jobs) jobs=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

if [[ -z $jobs ]]; then
  # A compilation takes up to 1.5 GB.
  memory_gb=$(awk '/MemAvailable/ {print int($2 / 1e6)}' /proc/meminfo)
  jobs=$(nproc)
  ((jobs <= memory_gb * 2 / 3)) || jobs=$((memory_gb * 2 / 3))
  ((jobs >= 1)) || jobs=1
fi

cd "$REPO"
# Objects of an earlier checkout in another folder serve too.
export CCACHE_BASEDIR=$REPO CCACHE_NOHASHDIR=1

"$REPO/deploy/get_xgrammar.sh" ||
  say "going on without XGrammar: output of a given form (a JSON schema, ...) will be refused"

log=build/$preset-build.log
mkdir -p build
# was_elsewhere: this folder was copied or moved here with its build, whose files name the other place.
was_elsewhere() {
  local home
  home=$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "build/$preset/CMakeCache.txt" 2> /dev/null) || return 1
  [[ -n $home && ! $home -ef $REPO ]]
}
# knows_xgrammar: not where it was configured before the sources came.
knows_xgrammar() {
  [[ ! -d build/xgrammar ]] || grep -q 'lamina_xgrammar' "build/$preset/build.ninja" ||
    grep -q '^LAMINA_WITH_XGRAMMAR:BOOL=OFF' "build/$preset/CMakeCache.txt"
}
configure=(cmake --preset "$preset")
if was_elsewhere; then
  say "build/$preset was configured in another folder; configuring it anew"
  configure+=(--fresh)
fi
if [[ ${#configure[@]} -gt 3 || ! -f build/$preset/build.ninja ]] || ! knows_xgrammar; then
  say "configuring ($preset)"
  "${configure[@]}" > "$log" 2>&1 || {
    tail -n 30 "$log" >&2
    fail "cmake could not configure; the whole output is in $log"
  }
fi

build=(cmake --build "build/$preset" --parallel "$jobs" "${targets[@]}")
say "building ($preset, $jobs at a time)"
started=$SECONDS
if [[ -t 1 ]]; then
  "${build[@]}" || fail "the build failed; the error is above"
else
  "${build[@]}" > "$log" 2>&1 || {
    grep -E -A 8 'FAILED|error' "$log" | tail -n 60 >&2
    fail "the build failed; the whole output is in $log"
  }
fi
say "built in $((SECONDS - started)) s"
