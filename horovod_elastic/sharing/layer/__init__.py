"""The part of GPU sharing that runs inside a training process."""
