"""`make bench`: what allstop costs, each figure beside the floor it is measured against."""
