"""The words and units that every signature shares."""

# Plain aliases: they document a signature and cost nothing at run time.
Revision = int
"""Position of one commit in a board's log; `1..REVISION_MAX`, and 0 before the first commit."""
Key = str
"""A path such as `public/plan/budget`; the grammar is in `core/path.py`."""
Prefix = str
"""A key path that stands for everything below it, written without a trailing slash."""
Fence = int
"""The revision at which a lease was granted. A commit names the fences that it relies on."""
Milliseconds = int
"""A duration, or an instant since the Unix epoch, in milliseconds. Names end in `_ms`."""
