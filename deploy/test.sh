#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs packages, gets the model, builds, and runs every test that needs no accelerator. Ends with
# CTest's summary; exit status 0 when all passed.
#
# usage: deploy/test.sh [--quick] [--label L]... [--target T]... [--sanitizer asan|tsan] [--jobs N]
#                       [--retries N] [--long] [--help]
#   --quick           unit and style tests only, and no model
#   --label L         only tests with this label: unit, conformance, fidelity, sim, integration, hostile, rdma_vm,
#                     style
#   --target T        build only this test program and run it; repeat for more; no model
#   --sanitizer S     build and run with AddressSanitizer (and UBSan) or ThreadSanitizer
#   --jobs N          tests at the same time, of those that mostly wait twice as many (default: 2)
#   --retries N       run tests of tests/retried_tests.txt that failed up to N times more, one at a
#                     time behind all others, and name those that needed it (default: 0). Any other
#                     test that fails is a failure at once, and so is one whose answers were wrong.
#   --long            behind the tests 20,000 seeds of every world of the scheduler's simulation (tests/sim/night.py)
# Environment: LAMINA_REQUIRE_MODEL=1 fails when the model cannot be had; without it the tests that
# need it are left out, and named. LAMINA_REQUIRE_RDMA_VM=1 does the same for the guest of tests/rdma_vm,
# LAMINA_REQUIRE_CLUSTER_TESTS=1 for sshd, Slurm and the like, LAMINA_REQUIRE_XGRAMMAR=1 and
# LAMINA_REQUIRE_VERBS=1 for what the build leaves out without XGrammar's sources or libibverbs.
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# Build and tests from a fresh clone, on two idle cores.
readonly TOTAL_MINUTES_MAX=60

known_labels=(unit conformance fidelity sim integration hostile rdma_vm style)
preset=release
labels=()
targets=()
jobs=2
retries=0
quick=false
long=false
while [[ $# -gt 0 ]]; do
  case $1 in
    --quick) quick=true ;;
    --long) long=true ;;
    --label)
      label=$(value_of "$@")
      [[ " ${known_labels[*]} " == *" $label "* ]] || usage_error "--label is one of ${known_labels[*]}, not '$label'"
      labels+=("$label")
      shift
      ;;
    --target) targets+=("$(value_of "$@")"); shift ;;
    --sanitizer)
      preset=$(value_of "$@")
      [[ $preset == asan || $preset == tsan ]] || usage_error "--sanitizer is asan or tsan, not '$preset'"
      shift
      ;;
    --jobs)
      jobs=$(value_of "$@")
      [[ $jobs =~ ^[1-9][0-9]*$ ]] || usage_error "--jobs is a number from 1 on, not '$jobs'"
      shift
      ;;
    --retries)
      retries=$(value_of "$@")
      [[ $retries =~ ^[0-9]+$ ]] || usage_error "--retries is a number, not '$retries'"
      shift
      ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done
if $quick && [[ ${#labels[@]} -eq 0 ]]; then
  labels=(unit style)
fi

build=(--preset "$preset")
for target in "${targets[@]}"; do
  build+=(--target "$target")
done
if $quick; then
  "$REPO/deploy/install_packages.sh"
else
  "$REPO/deploy/install_packages.sh" --tests
  # Without them the tests of clusters of hosts are left out, by name.
  "$REPO/deploy/install_packages.sh" --cluster-tests || [[ ${LAMINA_REQUIRE_CLUSTER_TESTS:-0} != 1 ]] ||
    fail "packages of deploy/packages_cluster_tests.txt are missing and LAMINA_REQUIRE_CLUSTER_TESTS is 1"
fi
if ! $quick && [[ ${#targets[@]} -eq 0 ]]; then
  if "$REPO/deploy/get_model.sh"; then
    :
  elif [[ ${LAMINA_REQUIRE_MODEL:-0} == 1 ]]; then
    fail "the model is missing and LAMINA_REQUIRE_MODEL is 1"
  else
    say "going on without the model: tests that need it are left out"
  fi
fi
"$REPO/deploy/build.sh" "${build[@]}"

# Those that mostly wait take one of CTest's processors, all others two (cmake/LaminaTargets.cmake).
arguments=(--test-dir "$REPO/build/$preset" --output-on-failure --no-tests=error --parallel $((2 * jobs)))
if [[ ${#labels[@]} -gt 0 ]]; then
  # CTest takes one expression: a label that is any of these.
  arguments+=(--label-regex "^($(IFS='|'; echo "${labels[*]}"))\$")
fi
if [[ ${#targets[@]} -gt 0 ]]; then
  arguments+=(--tests-regex "^($(IFS='|'; echo "${targets[*]}"))\$")
fi
readonly log=$REPO/build/$preset/test.log
readonly failed_log=$REPO/build/$preset/Testing/Temporary/LastTestsFailed.log

# Names of the tests that failed in the last run of CTest.
failed_tests() {
  [[ ! -e $failed_log ]] || sed 's/^[0-9]*://' "$failed_log"
}

# Of the names on stdin those that tests/retried_tests.txt has, or, with --not, those that it lacks.
retried() {
  local name listed wanted=yes
  [[ ${1:-} != --not ]] || wanted=no
  while read -r name; do
    listed=no
    # A shard of a test is NAME.CLASS.
    ! grep -q "^${name%%.*} " "$REPO/tests/retried_tests.txt" || listed=yes
    [[ $listed != "$wanted" ]] || echo "$name"
  done
}

# Names of the tests in a log that failed by a wrong answer (tests/integration/harness.py, tests/conformance/transport_support.h), which no
# busy machine explains.
never_retried() {
  awk '/Test *#[0-9]+: [^ ]+ \.\./ {sub(/.*Test *#[0-9]+: /, ""); name = $1}
       /NEVER RETRIED: / && !seen[name]++ {print name}' "$1"
}

# The ten slowest tests of a log, in seconds. All lines are read: whoever writes into a closed pipe would end this script.
slowest() {
  sed -nE 's/.*Test *#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*/\2 \1/p' "$1" | sort -rn |
    awk 'NR <= 10 {printf "  %7.1f s  %s\n", $1, $2}'
}

# Minutes of each label in a log, by CTest's own sums of seconds times processors, two of which are a test's place: tests that run side by
# side count each, those that mostly wait half.
minutes_by_label() {
  awk '/^Label Time Summary:/ {on = 1; next}
       on && !NF {exit}
       on {sub(/^\(/, "", $5); printf "  %7.1f min  %s, tests: %d\n", $3 / 120, $1, $5}' "$1"
}

say "testing"
status=0
began=$SECONDS
rm -f "$failed_log"
ctest "${arguments[@]}" | tee "$log" || status=$?
tests_minutes=$(((SECONDS - began + 59) / 60))

failed=$(failed_tests)
if [[ -n $failed && $retries -gt 0 ]]; then
  unlisted=$(retried --not <<< "$failed")
  wrong=$(never_retried "$log")
  if [[ -n $wrong ]]; then
    say "failed by a wrong answer, which no busy machine explains, so that nothing is run again:"
    say "  ${wrong//$'\n'/ }"
  elif [[ -n $unlisted ]]; then
    say "failed, and not in tests/retried_tests.txt, so that nothing is run again:"
    say "  ${unlisted//$'\n'/ }"
  else
    say "failed, and each is run up to $retries times more: ${failed//$'\n'/ }"
    names=${failed//./\\.}
    status=0
    ctest --test-dir "$REPO/build/$preset" --output-on-failure --tests-regex "^(${names//$'\n'/|})\$" \
      --repeat "until-pass:$retries" | tee "$log.retried" || status=$?
    wrong=$(never_retried "$log.retried")
    if [[ -n $wrong ]]; then
      status=8
      say "failed by a wrong answer when it was run again: ${wrong//$'\n'/ }"
    fi
    say "failed at least once, each a defect to be found: ${failed//$'\n'/ }"
  fi
fi

say "minutes by label"
minutes_by_label "$log"
say "the slowest tests"
slowest "$log"
say "tests took $tests_minutes min; with the build $(((SECONDS + 59) / 60)) min"
if [[ $SECONDS -gt $((TOTAL_MINUTES_MAX * 60)) ]]; then
  say "warning: more than $TOTAL_MINUTES_MAX min: a test or a build step has become slow, or the machine was busy"
fi
if $long; then
  say "the simulation's long run"
  "$REPO/deploy/build.sh" --preset "$preset" --target scheduler_sim_replay
  "$REPO/tests/sim/night.py" --jobs "$jobs" --program "$REPO/build/$preset/bin/scheduler_sim_replay" || status=$?
fi
exit "$status"
