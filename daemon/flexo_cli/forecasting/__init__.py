"""What `flexo forecast` does: where its history comes from, and how it tells what is to come."""
