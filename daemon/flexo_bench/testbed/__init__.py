"""make bench-testbed: the testbed of Lyra's slides, time compressed, on a real lab and in the simulator."""
