# SPDX-License-Identifier: Apache-2.0
# requires: instructor==1.17.0
"""instructor in the mode TOOLS."""
import instructor
import openai
import pydantic

from client_settings import KEY, MODEL, URL, did


class Colour(pydantic.BaseModel):
    """A colour."""
    name: str = pydantic.Field(max_length=12)
    dark: bool


client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY), mode=instructor.Mode.TOOLS)
colour = client.chat.completions.create(model=MODEL, max_tokens=60, temperature=0, response_model=Colour,
                                        messages=[{"role": "user", "content": "Name a colour."}])
assert isinstance(colour, Colour)
did("mode `TOOLS`: a pydantic model from a named call")
