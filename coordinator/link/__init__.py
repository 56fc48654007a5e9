"""The shims' streams: one gRPC stream per shim, dialled by the shim."""
