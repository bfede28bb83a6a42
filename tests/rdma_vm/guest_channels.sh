#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: emulated CUDA devices that wait for windows of verbs:// and send by outboxes: channels, and a
# compute node whose peer is late, stale, silent or gone.
source ./guest_lib.sh

make_loopback_device
all_pass 50 cuda_emulated_test '*WindowChannelTest*Over_verbs'
lap "channels"
all_pass 21 cuda_node_test '*StepWorkerTest.*/OnDevice*OverVerbs'
lap "compute node"
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 5000 ]]
