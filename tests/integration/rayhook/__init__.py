"""What Ray itself tells of nodes that it drains, passed on."""
