"""The gRPC side of flexod: who calls, what they may say, and what reaches the controller of it."""
