#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run_guest.sh GUEST WORK SCRIPT: boots the guest that build_guest.sh made in GUEST, runs WORK/SCRIPT
# in it, prints its console, and exits with its status; 125 when it never told one.
#
# Always by emulation: some machines have a /dev/kvm under which a stock kernel hangs.
set -euo pipefail
guest=$1
work=$(readlink -f "$2")
script=$3
source=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/../..")
seconds=${RDMA_VM_SECONDS:-800}

rm -f "$work/status"
: >"$work/console.log"
tail -n +1 -F "$work/console.log" 2>/dev/null | sed -u 's|\r||' &
tail_pid=$!
# Without erms the kernel copies eight bytes by one store, as a device does, and not byte by byte.
timeout -k 5 "$seconds" qemu-system-x86_64 \
  -accel tcg,thread=multi,tb-size=512 -cpu max,erms=off,fsrm=off -smp 2 -m 2048 \
  -nodefaults -display none -no-reboot \
  -serial "file:$work/console.log" -serial "file:$work/status" \
  -virtfs local,path=/,mount_tag=hostroot,security_model=none,readonly=on,multidevs=remap \
  -virtfs "local,path=$work,mount_tag=work,security_model=none,multidevs=remap" \
  -kernel "$guest/vmlinuz" -initrd "$guest/initramfs" \
  -append "console=ttyS0,115200 quiet panic=-1 mitigations=off lamina.work=$work lamina.run=$script lamina.source=$source" \
  || echo "rdma_vm: qemu ended with $?" >&2
sleep 0.3
kill "$tail_pid" 2>/dev/null || true
status=$(tr -dc 0-9 <"$work/status" 2>/dev/null || true)
exit "${status:-125}"
