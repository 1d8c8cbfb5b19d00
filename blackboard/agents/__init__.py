"""Ready agents, built only on the names that `blackboard` exports.

The sources are in agents/ at the top of the repository.
"""

from blackboard._checkout import checkout_path

__path__ += checkout_path("agents")
