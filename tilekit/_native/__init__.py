"""The host path in C: launches in one call, where it was built. All of it has a form in Python, which does the same."""
