"""Snapshots that are deleted, collected and verified by real coordinators over a real etcd."""
