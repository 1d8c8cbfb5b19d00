"""Demonstrations: each is one story that ends in checks of what it shows.

The sources are in demos/ at the top of the repository.
"""

from blackboard._checkout import checkout_path

__path__ += checkout_path("demos")
