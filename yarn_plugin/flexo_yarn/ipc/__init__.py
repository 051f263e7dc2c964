"""Hadoop's IPC, version 9: connections, authentication by token, calls and their errors."""
