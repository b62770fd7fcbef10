"""Bytes between a listening or dialled socket and gRPC, where gRPC cannot open or judge that socket itself."""
