"""The gRPC server of both processes: listeners, health, reflection, and requests that do not decode."""
