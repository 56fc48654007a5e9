"""Watches files by epoll, gives them to a child and closes them: what a launcher of workers does.

    forgetting.py OUT [shared]

One registration is left over under a number that is free, two under one number that is in use
again, one of a pipe whose other end is open here. One is of a file that is open under another
number. The numbers are written to OUT, then a count of what comes over the pair that both still
have. With `shared` the child keeps the epoll, too.
"""

import os
import select
import socket
import sys
from pathlib import Path

out = Path(sys.argv[1])
poll = select.epoll()
pairs = [socket.socketpair() for _ in range(5)]
read, write = os.pipe()
free, again, twice, living, moved = (pair[0] for pair in pairs)
for end in (free, again, living, moved):
    poll.register(end, select.EPOLLIN)
poll.register(read, select.EPOLLIN)
number = again.fileno()
kept = os.dup(again.fileno())  # for the child, which is to have both
again.close()
os.dup2(twice.fileno(), number)
poll.register(number, select.EPOLLIN)

if os.fork() == 0:
    if sys.argv[2:] != ["shared"]:
        poll.close()
    while True:
        pairs[3][1].send(b"x")
        select.select([], [], [], 0.002)

os.close(kept)
elsewhere = os.dup(moved.fileno())
numbers = {"free": free.fileno(), "pipe": read, "again": number, "living": living.fileno()}
numbers |= {"moved": moved.fileno(), "elsewhere": elsewhere}
for end in (free, twice, moved):
    end.close()
os.close(read)
in_use = os.open("/dev/null", os.O_RDONLY)
os.dup2(in_use, number)
os.close(in_use)
lines = [f"{name} {at}" for name, at in numbers.items()]
out.write_text("\n".join([f"epoll {poll.fileno()}", *lines, ""]))
count = 0
with out.open("a", buffering=1) as log:
    while True:
        poll.poll(1.0)
        count += len(living.recv(1))
        if count % 50 == 0:
            log.write(f"{count} counted\n")
