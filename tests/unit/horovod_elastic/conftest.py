"""Lets tests here import Horovod's Python files without its native library, as training processes do."""

from horovod_elastic.core.c10d import standin

standin.install()
