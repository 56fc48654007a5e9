"""The keeping side alone: `keeper.py NODE DIR LIMIT_BYTES [CA CERT KEY]`; prints its port.

STORE_KEY in its environment is the key of the store, which it opens as a shim would.
"""

import os
import signal
import sys
from pathlib import Path

from coordinator.link.security import Tls, channel_credentials, server_credentials
from worker_shim.images.objects.opening import StoreOptions, open_objects, open_sealed
from worker_shim.images.objects.partner.store import PartnerStore

node, folder, limit, *files = sys.argv[1:]
tls = Tls(*map(Path, files))
options = StoreOptions(
    where=f"partner://{node}@127.0.0.1:1,nobody@127.0.0.1:2",
    node=node,
    key="env:STORE_KEY" if "STORE_KEY" in os.environ else "",
    keep_dir=Path(folder),
    listen="127.0.0.1:0",
    limit_bytes=int(limit),
    client=channel_credentials(tls),
    server=server_credentials(tls),
)
store = open_sealed(options).objects if options.key else open_objects(options)
assert isinstance(store, PartnerStore)
print(store.port, flush=True)
signal.pause()
