"""etcd behind the key-value port; nothing outside this package knows its client."""

from coordinator.store.etcd.client import EtcdOptions
from coordinator.store.etcd.kv import EtcdKeyValue

__all__ = ["EtcdKeyValue", "EtcdOptions"]
