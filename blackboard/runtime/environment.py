"""The model that environment variables name; without one, the library that asks is not loaded."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from blackboard.errors import InvalidRequest
from blackboard.runtime.models import OPENAI, Endpoint, Prices

if TYPE_CHECKING:
    from blackboard.runtime.providers import ProviderModel


def model_from_environment(environment: Mapping[str, str] | None = None) -> "ProviderModel | None":
    """The model that BB_MODEL names; None without BB_MODEL.

    `provider:name` is a model of that provider, with the provider's own variable for the key. With
    OPENAI_BASE_URL, or a name without a provider, it is one with OpenAI's chat completions, there
    or at OpenAI, with OPENAI_API_KEY. BB_MODEL_PRICES (`2.5,10`: USD per million tokens, prompt and
    completion) lets costs be computed. Errors: InvalidRequest, naming the variable, when one of
    them is invalid.
    """
    found = os.environ if environment is None else environment
    model, url = found.get("BB_MODEL", ""), found.get("OPENAI_BASE_URL", "")
    if not model:
        return None
    from blackboard.runtime.providers import ProviderModel  # the library is an extra

    prices = Prices.parse(found["BB_MODEL_PRICES"]) if found.get("BB_MODEL_PRICES") else None
    if ":" in model and not url:
        try:
            return ProviderModel(model, prices=prices)
        except InvalidRequest as error:
            raise InvalidRequest(field="BB_MODEL", reason=error.reason) from error
    key = found.get("OPENAI_API_KEY", "")
    return ProviderModel(Endpoint(url or OPENAI, model, key), prices=prices)
