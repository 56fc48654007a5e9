"""A real S3 server for tests, and somebody on the way to it who meddles."""
