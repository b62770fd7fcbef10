#!/bin/sh
# Firecracker for the VM fc1. The socket belongs to the group vms, and nobody else may connect to it.
set -eu
umask 007
install -d -m 2750 -g vms /run/vms/fc1
# Firecracker refuses to start while the socket of an earlier run is in the way.
rm -f /run/vms/fc1/vsock.sock
exec sg vms -c 'exec firecracker --no-api --config-file /etc/vms/fc1.json'
