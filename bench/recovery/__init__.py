"""The proof: one job, one schedule of lost nodes, and several ways of living through it."""
