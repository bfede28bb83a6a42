#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sourced by the scripts that run in the guest: its network, and what all of them need.
set -euo pipefail
ulimit -l unlimited
# shellcheck disable=SC1091
source ./paths

# One Soft-RoCE device that reaches itself: rxe0, with the GIDs of 192.0.2.1. 4200 leaves room for
# RoCE's MTU of 4096.
make_loopback_device() {
  [[ -e /sys/class/net/dummy0 ]] || ip link add dummy0 type dummy
  ip link set dummy0 mtu 4200 address 02:00:00:00:00:01 up
  ip addr add 192.0.2.1/24 dev dummy0
  rdma link add rxe0 type rxe netdev dummy0
}

# Another device of the same speed, whose address is of another network: rxe1, with 198.51.100.1.
make_second_network() {
  ip link add dummy1 type dummy
  ip link set dummy1 mtu 4200 address 02:00:00:00:00:02 up
  ip addr add 198.51.100.1/24 dev dummy1
  rdma link add rxe1 type rxe netdev dummy1
}

# Two devices with a cable between them: rxeA and rxeB on veth0 and veth1. They reach each other by
# GID 0, the link-local one, which appears once the kernel has found the address to be unique.
make_cable() {
  echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad
  ip link add veth0 type veth peer name veth1
  ip link set veth0 mtu 4200 up
  ip link set veth1 mtu 4200 up
  rdma link add rxeA type rxe netdev veth0
  rdma link add rxeB type rxe netdev veth1
  for _ in $(seq 100); do
    if ip -6 addr show dev veth0 scope link | grep -q inet6 &&
      ip -6 addr show dev veth1 scope link | grep -q inet6; then
      return
    fi
    sleep 0.1
  done
  echo "no link-local address came" >&2
  return 1
}

# How far the guest has come, for those who want to know where its time goes.
lap() { echo "guest: $1 after $(cut -d' ' -f1 /proc/uptime) s"; }

# all_pass FEWEST PROGRAM FILTER: runs these tests of a program, FEWEST at least. The emulated console is
# slow: it shows what took seconds, and all when something failed.
all_pass() {
  "$BUILD/tests/$2" --gtest_filter="$3" >suite.txt 2>&1 || {
    cat suite.txt
    return 1
  }
  grep -E '\([0-9]{4,} ms\)$|  PASSED  ' suite.txt
  [[ $(sed -n 's/.*  PASSED  \] \([0-9]*\) test.*/\1/p' suite.txt) -ge $1 ]]
}

# passes FEWEST FILTER: conformance tests, of which none may be skipped for want of a device.
passes() {
  all_pass "$1" transport_conformance_test "$2"
  if grep -q SKIPPED suite.txt; then
    return 1
  fi
}

packets_of() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts"; }
