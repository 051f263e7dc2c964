"""What stands behind `flexo simulate` and `flexo whatif`; imported only when one of them is called."""
