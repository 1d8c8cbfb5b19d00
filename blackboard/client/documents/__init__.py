"""Documents that several people and agents edit at once."""
