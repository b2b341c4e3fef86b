"""What belongs to a device while a program runs: its streams and their timelines, its memory and who uses it, who gets which stream."""
