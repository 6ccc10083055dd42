#!/bin/busybox sh
# The guest's first program: puts a RAM overlay on the host's read-only tree and hands over to the
# script named on the kernel's command line. @MODULES@ is filled in by the host.
set -e
b=/bin/busybox
trap '$b echo "vm: init failed"; $b reboot -f' EXIT
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for module in @MODULES@; do $b insmod "/modules/$module"; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,cache=loose,ro host /lower
$b mount -t tmpfs -o size=75% tmpfs /upper
$b mkdir /upper/data /upper/scratch
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/data,workdir=/upper/scratch overlay /tree
for word in $($b cat /proc/cmdline); do
  case $word in lunette.guest=*) script=${word#lunette.guest=} ;; esac
done
$b umount /proc /dev
trap - EXIT
exec $b switch_root /tree /bin/bash "$script"
