"""Traces in, virtual time, the same controller and policies, tables and pictures out."""
