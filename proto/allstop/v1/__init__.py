"""Version 1 of the vocabulary: records, the shims' stream, the operators' service (generated)."""
