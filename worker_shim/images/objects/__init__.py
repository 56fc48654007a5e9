"""Where bytes are kept under names: one small port, several kinds of store."""
