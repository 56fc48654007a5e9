"""Partner copy: every object on this node's disk and on another's, for clusters without a store."""
