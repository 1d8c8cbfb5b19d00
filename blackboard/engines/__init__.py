"""The storage engines: the port (`base.py`) and its two implementations."""
