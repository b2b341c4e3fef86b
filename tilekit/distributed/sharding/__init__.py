"""Arrays in parts on a mesh of workers."""
