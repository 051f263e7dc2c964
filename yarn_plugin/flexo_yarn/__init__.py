"""YARN as flexo speaks to it: Hadoop's IPC, and the calls to the ResourceManager and to NodeManagers."""
