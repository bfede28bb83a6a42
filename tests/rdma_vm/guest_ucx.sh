#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: the conformance suite of ucx:// over reliable connections of the RDMA device, with fewer
# rounds of its long tests, since processors are emulated, and with 4 peers for 64, since UCX takes some
# 25 MB for each. A part of guest_transport.sh; alone it runs by hand:
#
#   tests/rdma_vm/run_in_guest.sh build/release guest_ucx.sh
source ./guest_lib.sh

make_loopback_device
export UCX_TLS=rc_v,self UCX_NET_DEVICES=rxe0:1
# Soft-RoCE's datagrams, by which UCX sets connections up, fail its look at their address.
export UCX_UD_VERBS_ETH_DGID_CHECK=n
# The default, 7, stands for ever with Soft-RoCE: nobody would learn that a peer is dead.
export UCX_RC_VERBS_RETRY_COUNT=3 UCX_RC_VERBS_TIMEOUT=100ms
export UCX_UD_VERBS_RX_QUEUE_LEN=256 UCX_RC_VERBS_RX_QUEUE_LEN=256
before=$(packets_of rxe0)
LAMINA_CONFORMANCE_DIVISOR=50 LAMINA_CONFORMANCE_PEERS=4 passes 40 "Backends/*/ucx"
# UCX may not have taken another way.
echo "guest: rxe0 sent $(($(packets_of rxe0) - before)) packets"
[[ $(packets_of rxe0) -gt $((before + 10000)) ]]
