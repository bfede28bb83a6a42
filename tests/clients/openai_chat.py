# SPDX-License-Identifier: Apache-2.0
# requires: openai==3.54.0
"""Chats, streams, a schema of pydantic's, a required tool."""
import openai
import pydantic

from client_settings import KEY, MODEL, URL, did, weather_tool


class Colour(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=12)


client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
chat = {"model": MODEL, "max_tokens": 60, "temperature": 0, "messages": [{"role": "user", "content": "Name a colour."}]}
whole = client.chat.completions.create(**chat).choices[0].message.content
streamed = "".join(c.choices[0].delta.content or "" for c in client.chat.completions.create(**chat, stream=True))
assert whole == streamed
assert client.chat.completions.parse(**chat, response_format=Colour).choices[0].message.parsed.name is not None
call = client.chat.completions.create(**chat, tools=[weather_tool()], tool_choice="required").choices[0].message
assert call.tool_calls[0].function.name == "weather"
did("chat whole and streamed alike; `parse` into a pydantic model; a required tool call")
