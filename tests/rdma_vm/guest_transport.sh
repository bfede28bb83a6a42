#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: the conformance suite of verbs://, with fewer rounds of its long tests, since processors are
# emulated; what moves data of it once more with windows and sources in a device's memory, staged and by address;
# then that of ucx:// over the same device, and a cable that loses, delays and is pulled.
source ./guest_lib.sh

make_loopback_device
# Two processors that only poll are what emulation is slowest at.
LAMINA_CONFORMANCE_DIVISOR=20 LAMINA_CONFORMANCE_PEERS=32 passes 40 "Rdma/*-*PingPong*"
LAMINA_CONFORMANCE_DIVISOR=200 passes 1 "Rdma/*PingPong*"
lap "verbs"
# The rest of the suite does not look at where data lies.
LAMINA_CONFORMANCE_DIVISOR=50 passes 35 "RdmaMemoryTest.*:RdmaOnDevices/*Data*:RdmaOnDevices/*Put*:\
RdmaOnDevices/*Source*:RdmaOnDevices/*Signal*:RdmaOnDevices/*RandomOperations*:RdmaOnDevices/*CrossProcesses*"
lap "verbs on devices"
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 10000 ]]
rdma link del rxe0
ip link del dummy0

./guest_ucx.sh
rdma link del rxe0
ip link del dummy0
lap "ucx"

make_cable
"$BUILD/tests/rdma_link_test"
lap "cable"
