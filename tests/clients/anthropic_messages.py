# SPDX-License-Identifier: Apache-2.0
# requires: anthropic==2.13.0
"""Anthropic's Messages."""
import anthropic

from client_settings import KEY, MODEL, URL, did, weather_schema

client = anthropic.Anthropic(base_url=URL, api_key=KEY)
ask = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0},
       "messages": [{"role": "user", "content": "Weather in Rome?"}]}
whole = client.messages.create(**ask).content[0].text
with client.messages.stream(**ask) as stream:
    assert "".join(stream.text_stream) == whole
use = client.messages.create(**ask, tools=[{"name": "weather", "input_schema": weather_schema()}],
                             tool_choice={"type": "any"}).content[-1]
assert use.type == "tool_use" and "city" in use.input
assert client.messages.count_tokens(model=MODEL, messages=ask["messages"]).input_tokens > 3
did("`messages.create`, `messages.stream`, a tool, `count_tokens`")
