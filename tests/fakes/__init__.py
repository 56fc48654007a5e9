"""Stand-ins for what a machine without it lacks, that fail as the real thing does."""
