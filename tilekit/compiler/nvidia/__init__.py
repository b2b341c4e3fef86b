"""Instructions of particular GPUs: wgmma, TMA, cp.async, mbarrier, and what they read in shared memory."""
