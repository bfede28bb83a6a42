#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: emulated CUDA devices that wait for windows of verbs:// and send by outboxes: channels, a
# compute node whose peer is late, stale, silent or gone, and clusters with the bits of shared memory, whose nodes
# leave; windows in the host's memory, and in the device's with words there or flushed by a thread.
source ./guest_lib.sh

make_loopback_device
# all_pass FEWEST PROGRAM FILTER
all_pass() {
  "$BUILD/tests/$2" --gtest_filter="$3" >suite.txt 2>&1 || {
    cat suite.txt
    return 1
  }
  grep -E '\([0-9]{4,} ms\)$|  PASSED  ' suite.txt
  [[ $(sed -n 's/.*  PASSED  \] \([0-9]*\) test.*/\1/p' suite.txt) -ge $1 ]]
}
all_pass 50 cuda_emulated_test '*WindowChannelTest*Over_verbs'
lap "channels"
all_pass 21 cuda_node_test '*StepWorkerTest.*/OnDevice*OverVerbs'
lap "compute node"
all_pass 5 cuda_node_test '*CudaFarWaits*Over_verbs-*HasTheBits*ComputeOver*'
lap "clusters"
# Those of memory nodes that are flushed have the bits where compute nodes' are, too.
all_pass 4 cuda_node_test '*CudaPolledWindows*Over_verbs-*Leave*Ordered*:*HaveTheBits*Flushed*'
all_pass 5 cuda_node_test '*CudaPolledReplies*Over_verbs-*InTheHostsMemory*:*AnotherReplica*:*PollToo*Ordered*:*Leave*Flushed*:*Shows*Ordered*'
lap "windows in the device's memory"
echo "guest: rxe0 sent $(packets_of rxe0) packets"
[[ $(packets_of rxe0) -gt 5000 ]]
