"""NCCL: how a worker is launched, what speaks against saving it, where its ranks meet again."""
