"""What is known of drivers, NCCL and features that cannot be saved: `table.toml`, and its judging.

`table` reads it, `node` and `tree` look what there is, `judging` puts both together. What the rows
can ask for is a closed vocabulary, so that a new row needs no code.
"""
