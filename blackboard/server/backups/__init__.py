"""What a service ships to a backup: continuously, and once."""
