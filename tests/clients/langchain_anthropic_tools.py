# SPDX-License-Identifier: Apache-2.0
# requires: langchain-anthropic==1.7.10
"""LangChain over Anthropic's Messages."""
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool

from client_settings import KEY, MODEL, URL, did


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


model = ChatAnthropic(base_url=URL, api_key=KEY, model=MODEL, max_tokens=60, temperature=0)
assert model.invoke("Name a colour.").content
assert model.bind_tools([weather], tool_choice="any").invoke("Rome?").tool_calls[0]["name"] == "weather"
did("`invoke`; `bind_tools` with a call")
