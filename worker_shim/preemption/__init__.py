"""Notices of clouds that this machine goes, read from their metadata services."""
