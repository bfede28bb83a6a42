#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: clusters of emulated CUDA devices that wait for windows of verbs:// and send by outboxes, with
# the bits of shared memory, whose nodes leave; windows in the host's memory, and in the device's with words there or
# flushed by a thread. What a node alone does is in guest_channels.sh.
source ./guest_lib.sh

make_loopback_device
# Nodes leave in the clusters below.
all_pass 4 cuda_node_test '*CudaFarWaits*Over_verbs-*HasTheBits*ComputeOver*:*Timeline*/MemoryOver*:*Timeline*/ComputeOver*:*LeavingTest*'
lap "clusters"
# Those of memory nodes that are flushed have the bits where compute nodes' are, too.
all_pass 4 cuda_node_test '*CudaPolledWindows*Over_verbs-*Leave*Ordered*:*HaveTheBits*Flushed*'
all_pass 5 cuda_node_test '*CudaPolledReplies*Over_verbs-*InTheHostsMemory*:*AnotherReplica*:*PollToo*Ordered*:*Leave*Flushed*:*Shows*Ordered*'
lap "windows in the device's memory"
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 5000 ]]
