#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that building Lamina and most of its tests need: deploy/packages.txt.
# Quick when all are there. Needs root, or sudo.
#
# usage: deploy/install_packages.sh [--list] [--tests] [--cluster-tests] [--help]
#   --list    print the packages that are missing, install nothing
#   --tests   those of deploy/packages_test.txt too, which one test each needs
#   --cluster-tests  those of deploy/packages_cluster_tests.txt too: sshd, Slurm and the like, of which no
#             service is started
set -euo pipefail
# shellcheck source=deploy/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

only_list=false
start_nothing=false
lists=("$REPO/deploy/packages.txt")
while [[ $# -gt 0 ]]; do
  case $1 in
    --list) only_list=true ;;
    --tests) lists+=("$REPO/deploy/packages_test.txt") ;;
    --cluster-tests)
      lists+=("$REPO/deploy/packages_cluster_tests.txt")
      start_nothing=true
      ;;
    -h | --help) print_help; exit 0 ;;
    *) usage_error "unknown argument '$1'" ;;
  esac
  shift
done

command -v dpkg-query > /dev/null || fail "this is not Debian: install what deploy/packages.txt lists by hand"

mapfile -t wanted < <(sed 's/#.*//; s/[[:space:]]//g; /^$/d' "${lists[@]}")
mapfile -t missing < <(comm -23 <(printf '%s\n' "${wanted[@]}" | sort -u) \
  <(dpkg-query -W -f '${Package} ${Status}\n' "${wanted[@]}" 2> /dev/null |
    awk '/install ok installed$/ {print $1}' | sort -u))

if $only_list; then
  [[ ${#missing[@]} -eq 0 ]] || printf '%s\n' "${missing[@]}"
  exit 0
fi
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo > /dev/null ||
    fail "installing packages needs root, and there is no sudo. As root, run: apt-get install ${missing[*]}"
  as_root=(sudo)
  # By itself sudo forgets by which proxy this user reaches the network.
  [[ -z ${http_proxy:-}${https_proxy:-} ]] || as_root+=("--preserve-env=http_proxy,https_proxy,no_proxy")
fi

say "installing ${#missing[@]} packages: ${missing[*]}"
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive
  apt-get install --yes --no-install-recommends -qq -o Dpkg::Use-Pty=0
  -o DPkg::Lock::Timeout=600) # A fresh machine installs its own updates first.
log=$(mktemp)
policy=
trap 'rm -f "$log"; [[ -z $policy ]] || "${as_root[@]}" rm -f "$policy"' EXIT
if $start_nothing && [[ ! -e /usr/sbin/policy-rc.d ]]; then
  # Debian's way to have packages installed whose services stay off.
  policy=/usr/sbin/policy-rc.d
  printf '#!/bin/sh\nexit 101\n' | "${as_root[@]}" tee "$policy" > /dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi
# With the lists at hand this saves the update; lists that are old or absent fail, and are renewed.
if ! "${install[@]}" "${missing[@]}" > "$log" 2>&1; then
  "${as_root[@]}" apt-get update -qq >> "$log" 2>&1 || true
  "${install[@]}" "${missing[@]}" >> "$log" 2>&1 || {
    tail -n 20 "$log" >&2
    fail "apt-get could not install them; the end of its output is above"
  }
fi
