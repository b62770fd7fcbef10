"""What the proxy serves over gRPC: each servicer turns an rpc into work of other rooms, and failures into statuses."""
