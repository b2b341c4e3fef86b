"""What belongs to a device while a program runs: streams, events, memory in stream order, hazards, and scheduling policies.

From below: `timeline` (moments of a stream), `stream`, `hazards` (who wrote, who read), `storage`, `allocator` (stream-ordered
allocation), `scheduling`, `device`, `policy` (which stream an op gets), `context` (what work waits for on its stream).
"""
