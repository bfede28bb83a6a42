#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
#
# PID 1 of the guest. The host's file system is at /host: read-only as a whole, read-write below the
# folder that the kernel's argument lamina.work names. In there runs the script lamina.run.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

argument() { tr ' ' '\n' </proc/cmdline | sed -n "s/^$1=//p"; }

# The second serial port is a file of the host: what stands there at the end is the exit status.
finish() {
  sync
  echo "$1" >/dev/ttyS1
  poweroff -f
}

work=$(argument lamina.work)
while read -r module; do
  insmod "/mod/$module" 2>/err || grep -q exists /err || echo "insmod $module: $(cat /err)"
done </mod/order

options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o ro,cache=loose,$options hostroot /host || finish 120
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t devpts pts /dev/pts
for folder in dev dev/shm dev/pts proc sys; do
  mount -o bind /$folder /host/$folder
done
# The guest's own folders for temporary files hide the host's: the sources may lie there.
source=$(argument lamina.source)
mkdir -p /source
mount -o bind "/host$source" /source || finish 122
mount -t tmpfs run /host/run
mount -t tmpfs -o mode=1777 tmp /host/tmp
if ! [ -d "/host$source" ]; then
  mkdir -p "/host$source"
  mount -o bind /source "/host$source"
fi
mkdir -p "/host$work"
mount -t 9p -o rw,cache=mmap,$options work "/host$work" || finish 121

ulimit -c 0
hostname guest
chroot /host ip link set lo up
echo "guest: kernel $(uname -r), up after $(cut -d' ' -f1 /proc/uptime) s"
chroot /host /bin/bash -c "cd $work && exec ./$(argument lamina.run)" </dev/null
status=$?
echo "guest: ended with $status after $(cut -d' ' -f1 /proc/uptime) s"
finish $status
