"""A Ray of two nodes, the second at ADDRESS and busy; it drains that one, until stdin ends.

cluster.py ADDRESS SECONDS
"""

import subprocess
import sys
from pathlib import Path

import ray
from ray.cluster_utils import Cluster

address, seconds = sys.argv[1:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
cluster.add_node(num_cpus=1, resources={"second": 1}, node_ip_address=address)
ray.init(address=cluster.address, logging_level="error", log_to_driver=False)


@ray.remote(num_cpus=0, resources={"second": 1})
class Worker:
    """A node with nothing on it is gone the moment that it is drained."""

    def where(self) -> str:
        return ray.get_runtime_context().get_node_id()


worker = Worker.remote()
node = ray.get(worker.where.remote(), timeout=60)
drain = [str(Path(sys.executable).with_name("ray")), "drain-node", "--address", cluster.address]
drain += ["--node-id", node, "--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "test"]
subprocess.run([*drain, "--deadline-remaining-seconds", seconds], check=True, timeout=60)
print(f"at {cluster.address}", flush=True)
sys.stdin.read()
ray.shutdown()
cluster.shutdown()
