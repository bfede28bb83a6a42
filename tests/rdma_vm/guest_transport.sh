#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: the conformance suite of verbs://, then a cable that loses, delays and is pulled.
source ./guest_lib.sh

make_loopback_device
"$BUILD/tests/transport_conformance_test" --gtest_filter='Rdma/*' --gtest_brief=1 | tee suite.txt
# Nothing may have been skipped for want of a device.
grep -Eq '\[  PASSED  \] [0-9]{2,} tests' suite.txt
! grep -q SKIPPED suite.txt
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 10000 ]]
rdma link del rxe0

make_cable
"$BUILD/tests/rdma_link_test" --gtest_brief=1
