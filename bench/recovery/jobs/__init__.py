"""The training script as each contender wants it written."""
