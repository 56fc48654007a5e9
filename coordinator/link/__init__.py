"""The shims' streams, and how what is said on them reaches the leader, whoever it is."""
