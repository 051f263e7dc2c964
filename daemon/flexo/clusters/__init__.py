"""The kinds of clusters that flexod can manage. `base` is the interface; each folder is an implementation."""
