"""A service outside the job: takes what comes, and says on its output when a client has gone."""

import socketserver
import sys


class Listener(socketserver.BaseRequestHandler):
    """One client."""

    def handle(self) -> None:
        """Read until the end."""
        sys.stdout.write(f"hello {self.client_address[0]}\n")
        sys.stdout.flush()
        while self.request.recv(1 << 16):
            pass


socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("0.0.0.0", int(sys.argv[1])), Listener).serve_forever()
