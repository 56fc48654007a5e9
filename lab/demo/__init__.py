"""The demo: a real job is stopped at one step, saved, loses a node, and comes back bit-exact."""
