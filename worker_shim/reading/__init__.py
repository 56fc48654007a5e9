"""What a snapshot holds, read from its images: nothing here stops, starts or changes anything."""
