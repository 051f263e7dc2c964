"""Policies decide the sizes of jobs; planners find nodes for them. Both import `model`, and no other package
of flexo."""
