"""What can be seen of a shim from outside. Nothing depends on it."""
