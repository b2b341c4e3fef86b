"""Instructions of particular GPUs: wgmma, TMA, cp.async, and what they read in shared memory."""
