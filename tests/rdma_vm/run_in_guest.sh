#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_in_guest.sh BUILD SCRIPT: builds the guest if need be and runs SCRIPT of this folder in it, with
# the programs of BUILD. Where the guest cannot start it says why, and is left out (77), or fails if
# LAMINA_REQUIRE_RDMA_VM is 1.
set -euo pipefail
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(readlink -f "$1")
script=$2
guest=$build/rdma_vm/guest
work=$build/rdma_vm/${script%.sh}

leave_out() {
  echo "rdma_vm: $1" >&2
  [[ "${LAMINA_REQUIRE_RDMA_VM:-}" == 1 ]] && exit 1
  exit 77
}

[[ "$(uname -m)" == x86_64 ]] || leave_out "the guest is for x86-64, this is $(uname -m)"
mkdir -p "$guest"
# The first of several builds it for all.
flock "$guest/lock" "$here/build_guest.sh" "$guest" || leave_out "the guest cannot be built, see above"
rm -rf "$work"
mkdir -p "$work"
install -m 755 "$here"/guest_*.sh "$work/"
cat >"$work/paths" <<END
BUILD=$build
SOURCE=$(readlink -f "$here/../..")
END
status=0
"$here/run_guest.sh" "$guest" "$work" "$script" || status=$?
if [[ "$status" == 125 ]]; then
  grep -q '^guest: kernel' "$work/console.log" || leave_out "the guest did not start"
  echo "rdma_vm: the guest started and did not end in time" >&2
  exit 1
fi
exit "$status"
