"""The package that the daemon and horovod_elastic share. They share nothing else.

It has the generated messages (`v1`), the proof of a caller's identity (`credentials`), and other code that
both sides need.
"""
