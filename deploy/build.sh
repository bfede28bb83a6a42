#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Lamina into build/PRESET. Says little: one line, and the errors.
#
# usage: deploy/build.sh [--preset P] [--target T]... [--jobs N] [--help]
#   --preset P   release (default), debug, asan, tsan
#   --target T   build only this; repeat for more (default: everything)
#   --jobs N     at the same time (default: one per core, fewer when memory is short)
# Environment: LAMINA_REQUIRE_XGRAMMAR=1 fails when XGrammar's sources cannot be had, LAMINA_REQUIRE_VERBS=1
# where libibverbs is not found; without them what needs these is left out, tests included.
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

if "$REPO/deploy/get_xgrammar.sh"; then
  :
elif [[ ${LAMINA_REQUIRE_XGRAMMAR:-0} == 1 ]]; then
  fail "XGrammar's sources are missing and LAMINA_REQUIRE_XGRAMMAR is 1"
else
  say "going on without XGrammar: output of a given form (a JSON schema, ...) will be refused, and its tests are left out"
fi

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
# has_what_is_required: where it has not, CMake says so when it configures.
has_what_is_required() {
  local ninja=build/$preset/build.ninja
  [[ ${LAMINA_REQUIRE_XGRAMMAR:-0} != 1 ]] || grep -q 'lamina_xgrammar' "$ninja" || return 1
  [[ ${LAMINA_REQUIRE_VERBS:-0} != 1 ]] || grep -q 'verbs_transport\.cc' "$ninja"
}
configure=(cmake --preset "$preset")
if was_elsewhere; then
  say "build/$preset was configured in another folder; configuring it anew"
  configure+=(--fresh)
fi
if [[ ${#configure[@]} -gt 3 || ! -f build/$preset/build.ninja ]] || ! knows_xgrammar || ! has_what_is_required; then
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
    # A build that was ended has no error in its log.
    grep -iE -A 8 'failed|error[: ]|fatal' "$log" | tail -n 60 >&2 || tail -n 30 "$log" >&2
    fail "the build failed; the whole output is in $log"
  }
fi
say "built in $((SECONDS - started)) s"
