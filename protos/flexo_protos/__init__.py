"""The wire: generated messages (`v1`) and how callers prove who they are (`credentials`).

The only thing that the daemon and horovod_elastic share.
"""
