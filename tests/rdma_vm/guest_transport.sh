#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: the conformance suite of verbs://, with fewer rounds of its long tests, since processors are
# emulated; then that of ucx:// over the same device, and a cable that loses, delays and is pulled.
source ./guest_lib.sh

make_loopback_device
LAMINA_CONFORMANCE_DIVISOR=20 "$BUILD/tests/transport_conformance_test" --gtest_filter="Rdma/*" | tee suite.txt
# Nothing may have been skipped for want of a device.
grep -Eq '\[  PASSED  \] [0-9]{2,} tests' suite.txt
if grep -q SKIPPED suite.txt; then
  exit 1
fi
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 10000 ]]
rdma link del rxe0
ip link del dummy0

./guest_ucx.sh
rdma link del rxe0
ip link del dummy0

make_cable
"$BUILD/tests/rdma_link_test"
