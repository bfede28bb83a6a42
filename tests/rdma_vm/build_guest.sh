#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# build_guest.sh OUT: makes OUT/vmlinuz and OUT/initramfs for a guest with Soft-RoCE, out of Debian's
# generic kernel. The package is downloaded and unpacked, never installed. Does nothing when OUT is
# of the kernel that apt offers now, and of these scripts.
set -euo pipefail
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$1
mkdir -p "$out"

say() { echo "rdma_vm: $*" >&2; }

for tool in qemu-system-x86_64 busybox cpio depmod rdma tc apt-get dpkg; do
  command -v "$tool" >/dev/null || {
    say "$tool is missing; the guest needs the packages busybox-static cpio ibverbs-providers iproute2 kmod qemu-system-x86"
    exit 1
  }
done
# The generic kernel, since the one for clouds lacks Soft-RoCE and 9p.
package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
if [[ -z "$package" && $(id -u) -eq 0 ]]; then
  apt-get -qq update || true
  package=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image/ {print $2; exit}')
fi
[[ -n "$package" ]] || {
  say "apt knows no linux-image-amd64: run apt-get update"
  exit 1
}
stamp="$package $(cat "$here/build_guest.sh" "$here/guest_init.sh" | sha256sum | cut -c1-16)"
if [[ -f "$out/initramfs" && "$(cat "$out/stamp" 2>/dev/null)" == "$stamp" ]]; then
  exit 0
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
say "downloading $package"
(cd "$scratch" && apt-get -q download "$package" >apt.log 2>&1) || {
  cat "$scratch/apt.log" >&2
  say "the kernel package cannot be downloaded"
  exit 1
}

mods='./lib/modules/*/kernel'
dpkg --fsys-tarfile "$scratch"/linux-image-*.deb | tar -x -C "$scratch" --wildcards \
  './boot/vmlinuz-*' './lib/modules/*/modules.*' "$mods/drivers/infiniband/core/*" \
  "$mods/drivers/infiniband/sw/*" "$mods/net/ipv[46]/*udp_tunnel.ko" "$mods/drivers/net/dummy.ko" \
  "$mods/drivers/net/veth.ko" "$mods/net/sched/sch_netem.ko" "$mods/drivers/virtio/*" \
  "$mods/net/9p/*" "$mods/fs/9p/*" "$mods/fs/netfs/*" "$mods/fs/fscache/*" "$mods/crypto/crc32*"
version=$(basename "$scratch"/lib/modules/*)
depmod -b "$scratch" "$version"

root=$scratch/root
mkdir -p "$root"/{bin,dev,proc,sys,host,mod}
cp "$(command -v busybox)" "$root/bin/busybox"
install -m 755 "$here/guest_init.sh" "$root/init"
# In the order of loading, so that the guest needs no modprobe. crc32_generic: its table is faster
# under emulation than the emulated instruction that crc32_pclmul wants.
for module in virtio_pci 9pnet_virtio 9p dummy veth sch_netem crc32_generic rdma_rxe ib_uverbs; do
  modprobe -d "$scratch" -S "$version" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ {print $2}' >"$scratch/order"
while read -r file; do
  cp "$file" "$root/mod/"
  basename "$file"
done <"$scratch/order" >"$root/mod/order"
(cd "$root" && find . -print0 | cpio -0 -o -H newc --quiet -R 0:0) | gzip -1 >"$out/initramfs"
cp "$scratch"/boot/vmlinuz-* "$out/vmlinuz"
echo "$stamp" >"$out/stamp"
say "guest of $package built"
