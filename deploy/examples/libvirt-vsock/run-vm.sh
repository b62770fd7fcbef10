#!/bin/sh
# QEMU without libvirt: a VM with CID 42 and the card at 0000:9b:00.0, which is bound to vfio-pci already. A CID is a number from 3 that no other
# running VM of this host has; QEMU refuses one that is taken.
set -eu
exec qemu-system-x86_64 -machine q35,accel=kvm -cpu host -smp 16 -m 64G -nodefaults -display none -serial mon:stdio \
  -drive file=/var/lib/vms/vm42.qcow2,if=virtio \
  -device vfio-pci,host=0000:9b:00.0 \
  -device vhost-vsock-pci,guest-cid=42
