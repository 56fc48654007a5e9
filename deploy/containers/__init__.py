"""Drives the containers of `deploy/compose`, where need be with an engine of its own."""
