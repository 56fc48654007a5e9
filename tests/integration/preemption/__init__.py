"""Notices of clouds, read from servers that speak as theirs do."""
