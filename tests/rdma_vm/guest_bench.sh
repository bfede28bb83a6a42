#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest, by hand: verbs:// compared with perftest's ib_write_lat and ib_write_bw on the same device. The
# processors are emulated, so the figures say nothing about RDMA; their form is that of a real device.
#
#   tests/rdma_vm/run_in_guest.sh build/release guest_bench.sh
source ./guest_lib.sh

make_loopback_device
for tool in ib_write_lat ib_write_bw; do
  command -v "$tool" >/dev/null || {
    echo "guest: $tool is missing; Debian: perftest" >&2
    exit 1
  }
done

# TOOL SIZE: a server in the background, and a client that is tried until the server listens.
perftest() {
  "$1" -d rxe0 -x 1 -s "$2" -n 200 -F >/dev/null 2>&1 &
  local server=$!
  local listens=false
  for _ in $(seq 100); do
    if "$1" -d rxe0 -x 1 -s "$2" -n 200 -F 127.0.0.1 >perftest.txt 2>&1; then
      listens=true
      break
    fi
    sleep 0.2
  done
  if ! $listens; then
    kill "$server"
    cat perftest.txt >&2
    exit 1
  fi
  wait "$server" || true
  echo "guest: $1 $2 bytes: $(grep -A1 '#bytes' perftest.txt | tail -1 | tr -s ' ')"
}

"$BUILD/bin/lamina-bench-transport" --transport verbs:// --cores two --rounds 2 --messages 50
for size in 8 65536; do
  perftest ib_write_lat "$size"
  perftest ib_write_bw "$size"
done
