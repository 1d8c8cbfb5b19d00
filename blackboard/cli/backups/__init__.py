"""Backups from the command line, and recovery from them."""
