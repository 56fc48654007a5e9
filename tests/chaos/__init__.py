"""Real coordinators, etcd, shims, CRIU and PyTorch in a lab, and a seeded nemesis among them."""
