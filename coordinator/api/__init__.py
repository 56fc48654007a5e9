"""What operators talk to: the Operator service and its client."""
