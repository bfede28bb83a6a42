# SPDX-License-Identifier: Apache-2.0
# requires: litellm==1.110.2
"""litellm, and its name for a prompt that is too long."""
import litellm

from client_settings import KEY, MODEL, URL, did, weather_tool

ask = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": KEY, "max_tokens": 30, "temperature": 0}
user = [{"role": "user", "content": "Weather in Rome?"}]
assert litellm.completion(**ask, messages=user).choices[0].message.content
call = litellm.completion(**ask, messages=user, tools=[weather_tool()], tool_choice="required")
assert call.choices[0].message.tool_calls[0].function.name == "weather"
try:
    litellm.completion(**ask, messages=[{"role": "user", "content": "many words " * 20000}])
    raise SystemExit("a prompt that is too long was taken")
except litellm.ContextWindowExceededError:
    pass
did("`completion`, a required tool; a prompt that is too long is its ContextWindowExceededError")
