"""The first minute: a story that runs, and a project to begin with."""
