"""The words on the wire; see v1."""
