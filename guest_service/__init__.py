"""The guest agent: runs inside a VM, samples its GPUs out of process, and serves what it knows."""
