#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest: a cluster over verbs://, against the same cluster over shm://.
source ./guest_lib.sh

make_loopback_device
make_second_network
mkdir -p model
"$BUILD/tests/write_random_model" model
before=$(packets_of rxe0)
LAMINA_BIN=$BUILD/bin PYTHONPATH=$SOURCE/tests/integration PYTHONDONTWRITEBYTECODE=1 \
  RDMA_VM_MODEL=$PWD/model python3 "$SOURCE/tests/rdma_vm/cluster_in_guest.py" --verbose
echo "guest: rxe0 sent $(($(packets_of rxe0) - before)) packets"
[[ $(packets_of rxe0) -gt $((before + 100)) ]]
