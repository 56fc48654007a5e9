"""Who may do what: roles in certificates, and a small authority for those who have none."""
