"""A real job trains for long under the auto policy while a seeded killer takes machines."""
