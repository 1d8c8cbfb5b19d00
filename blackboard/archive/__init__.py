"""The history of a board in SQL tables, and large values in an object store."""
