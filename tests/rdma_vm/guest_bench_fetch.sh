#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# In the guest, by hand: K and V that come over verbs://, compared with puts over it in the same run. The
# processors are emulated, so the rates say nothing about RDMA; their ratio says what is lost above it.
#
#   RDMA_VM_SECONDS=3600 tests/rdma_vm/run_in_guest.sh build/release guest_bench_fetch.sh
source ./guest_lib.sh

make_loopback_device
PYTHONPATH=$SOURCE/bench PYTHONDONTWRITEBYTECODE=1 python3 - <<'END'
import pathlib

import random_llama

pathlib.Path("model").mkdir(exist_ok=True)
random_llama.write(pathlib.Path("model"), random_llama.Shape(layers=2, width=256, hidden=256, heads=4, kv_heads=4, positions=8192))
END
lap "a model was written"
PYTHONDONTWRITEBYTECODE=1 python3 "$SOURCE/bench/fetch.py" --link verbs --model "$PWD/model" --capacity 64MiB --points 2x512 \
  --copy 32 --put-messages 20
