"""The content of `flexo top`, and the terminal that it is shown on."""
