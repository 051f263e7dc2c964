"""What `flexo top` shows, and the terminal that it is shown on."""
