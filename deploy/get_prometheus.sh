#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Unpacks the programs of Debian's package prometheus, for tests: prometheus and promtool. Installs
# nothing: no user is made, no service is started or enabled, root is not needed. Does nothing when
# they are there.
#
# usage: deploy/get_prometheus.sh [--output DIR] [--help]
#   --output DIR   where to put them, as DIR/usr/bin/ (default: build/release/environments/prometheus)
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

output=$REPO/build/release/environments/prometheus
while [[ $# -gt 0 ]]; do
  case $1 in
    --output) output=$(value_of "$@"); shift ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

# is_there: both run on this host.
is_there() {
  "$output/usr/bin/prometheus" --version > /dev/null 2>&1 && "$output/usr/bin/promtool" --version > /dev/null 2>&1
}

mkdir -p "$output"
exec 9> "$output/lock"
flock 9
! is_there || exit 0
command -v apt-get > /dev/null || fail "this is not Debian: install Prometheus yourself, so that promtool is in the PATH"
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
cd "$download"
# The sandbox user of apt cannot write here, and need not.
get=(apt-get download -qq -o APT::Sandbox::User=root prometheus)
if ! "${get[@]}" > log 2>&1; then
  apt-get update -qq >> log 2>&1 || true
  "${get[@]}" >> log 2>&1 || {
    tail -n 10 log >&2
    fail "Debian's package prometheus cannot be downloaded; the end of apt-get's output is above"
  }
fi
dpkg-deb --extract prometheus_*.deb "$output"
is_there || fail "what Debian's package prometheus has does not run on this host"
