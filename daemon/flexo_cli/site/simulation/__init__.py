"""The code of `flexo simulate` and `flexo whatif`; imported only when one of them is called."""
