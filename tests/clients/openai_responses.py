# SPDX-License-Identifier: Apache-2.0
# requires: openai==3.54.0
"""The Responses API."""
import openai

from client_settings import KEY, MODEL, URL, did

client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY)
response = client.responses.create(model=MODEL, input="Name a colour.", max_output_tokens=12, temperature=0)
text = ""
with client.responses.stream(model=MODEL, input="Name a colour.", max_output_tokens=12, temperature=0) as stream:
    for event in stream:
        text += event.delta if event.type == "response.output_text.delta" else ""
assert response.output_text == text != ""
did("`responses.create` and `responses.stream`, alike")
