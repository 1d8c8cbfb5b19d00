"""Documents that several people and agents edit concurrently."""
