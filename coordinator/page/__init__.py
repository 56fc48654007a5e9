"""The page to look at: a client of the operator service like any other, which changes nothing."""
