"""A guarantee job and an opportunistic job share one GPU, after AntMan (OSDI'20). Guide:
docs/howto/sharing.md.
"""
