"""The things that cross between processes: the ring, shared memory, the status board, messages, links, errors."""
