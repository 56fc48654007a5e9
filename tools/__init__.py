"""What a developer's machine needs beside Python: found, or fetched into `.tools/`."""
