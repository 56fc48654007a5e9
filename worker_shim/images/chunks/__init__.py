"""Images as chunks: cutting, packs, what is shared, putting together again."""
