"""What fake nodes are, and what their workers put into a snapshot: all alike, any fits any."""

from coordinator.core.model import (
    Endpoint,
    Gpu,
    NodeFacts,
    ProgramFile,
    WorkerRecord,
    WorkerState,
)

GIB = 1 << 30
PROGRAM = ProgramFile("/usr/bin/python3", 6_000_000, "ab" * 32)
FLAGS = ("avx", "avx2", "sse4_2")


def gpu_of(node: str, index: int) -> Gpu:
    """One of its GPUs."""
    address = f"00000000:{23 + index:02x}:00.0"
    memory = 141 * GIB
    return Gpu(index, f"GPU-{node}-{index}", "Fake GPU", memory, memory, address, minor=index)


def facts_of(node: str, address: str = "", *, gpus: int = 0) -> NodeFacts:
    """A node like all the others."""
    return NodeFacts(
        node=node,
        address=address or f"10.9.{hash_of(node) // 250 % 250}.{hash_of(node) % 250 + 1}",
        architecture="x86_64",
        kernel="6.12.0",
        cpu_model="Fake CPU",
        cpu_flags=FLAGS,
        criu_version="4.2.1",
        memory_bytes=64 * GIB,
        memory_free_bytes=48 * GIB,
        staging_free_bytes=100 * GIB,
        store="store-1",
        shim_version="0.1.0",
        boot_id=f"boot-{node}",
        gpus=tuple(gpu_of(node, index) for index in range(gpus)),
        gpu_driver="580.95.05" if gpus else "",
        gpu_engine="library" if gpus else "",
    )


def hash_of(node: str) -> int:
    """A number that differs from node to node where names end in one."""
    digits = "".join(letter for letter in node if letter.isdigit())
    return int(digits or "0")


def worker_record(facts: NodeFacts, state: WorkerState) -> WorkerRecord:
    """What a worker puts into a snapshot, but for the manifest."""
    return WorkerRecord(
        job=state.job,
        worker=state.worker,
        node=facts.node,
        address=facts.address,
        root_pid=state.root_pid,
        highest_pid=1000 + len(state.ranks),
        ranks=state.ranks,
        image_bytes=1_000_000,
        memory_bytes=2_000_000,
        manifest="",
        manifest_digest="",
        connections=(Endpoint(facts.address, 29500, "10.9.0.250", 40000),),
        programs=(PROGRAM,),
        architecture="x86_64",
        cpu_flags=FLAGS,
        kernel="6.12.0",
        criu_version="4.2.1",
        store="store-1",
        held_ms=0,
        dump_ms=3,
        command=state.command,
        gpu_pids=(state.root_pid,) if state.gpu else (),
        gpus=facts.gpus if state.gpu else (),
        gpu_driver=facts.gpu_driver if state.gpu else "",
    )
