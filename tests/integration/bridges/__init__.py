"""Bridges from other systems, against servers that keep their objects as theirs do."""
