#!/bin/sh
# Cloud Hypervisor for the VM ch1, with the card at 0000:3b:00.0, which is bound to vfio-pci already. The socket belongs to the group vms.
set -eu
umask 007
install -d -m 2750 -g vms /run/vms/ch1
rm -f /run/vms/ch1/vsock.sock
exec sg vms -c 'exec cloud-hypervisor \
  --cpus boot=16 --memory size=64G \
  --kernel /var/lib/vms/ch1/vmlinux --cmdline "console=hvc0 root=/dev/vda1" \
  --disk path=/var/lib/vms/ch1/disk.raw \
  --device path=/sys/bus/pci/devices/0000:3b:00.0 \
  --vsock cid=4,socket=/run/vms/ch1/vsock.sock'
