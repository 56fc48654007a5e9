"""What can be seen of allstop from outside: timelines, traces, metrics. Nothing depends on it."""
