"""The `torch.backends` entry point: `import torch` ends by calling it in every process.

Source: torch/__init__.py, `_import_device_backends` (PyTorch >= 2.5). An exception here would make
`import torch` fail in the user's job, so none may leave. Standard library only.
"""

from __future__ import annotations


def load() -> None:
    """Load the hook into this process, or do nothing."""
    try:
        from worker_shim.hook import rank

        rank.load()
    except Exception:
        return
