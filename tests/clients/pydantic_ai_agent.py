# SPDX-License-Identifier: Apache-2.0
# requires: pydantic-ai-slim[openai]==2.68.0
"""An agent whose answer is a tool call."""
import pydantic
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from client_settings import KEY, MODEL, URL, did


class Colour(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)


model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY))
agent = Agent(model, output_type=Colour, model_settings={"temperature": 0, "max_tokens": 60})
assert agent.run_sync("Name a colour.").output.name is not None
did("`Agent` with an `output_type`, by a required call")
