"""Bridges from other systems that tell of nodes by objects of their own; see `page/hooks` too."""
