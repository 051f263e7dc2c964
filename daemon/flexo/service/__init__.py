"""The gRPC side of flexod: authenticates callers, checks what they may do, and passes their requests to the
controller."""
