"""Work that is recorded once and submitted any number of times: graphs, prepared ops, slots, `graphed`."""
