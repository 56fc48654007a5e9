"""What allstop is run with: images, units, dashboards, and a driver of the containers."""
