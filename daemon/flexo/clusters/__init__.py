"""What a policy's plan is carried out on. `base` is the interface, one folder an implementation."""
