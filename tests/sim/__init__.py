"""The simulator: real coordinators and shims under one seeded scheduler, with virtual time."""
