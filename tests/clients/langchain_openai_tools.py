# SPDX-License-Identifier: Apache-2.0
# requires: langchain-openai==1.7.4
"""LangChain's bind_tools and structured output."""
import pydantic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from client_settings import KEY, MODEL, URL, did


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


class Colour(pydantic.BaseModel):
    """A colour."""
    name: str = pydantic.Field(max_length=12)


model = ChatOpenAI(base_url=f"{URL}/v1", api_key=KEY, model=MODEL, max_tokens=60, temperature=0)
messages = [HumanMessage("What is the weather in Rome?")]
answer = model.bind_tools([weather], tool_choice="any", parallel_tool_calls=False).invoke(messages)
call, = answer.tool_calls
messages += [answer, ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])]
assert model.invoke(messages).content
chunks = list(model.bind_tools([weather], tool_choice="weather").stream("Rome?"))
total = chunks[0]
for chunk in chunks[1:]:
    total += chunk
assert total.tool_calls[0]["name"] == "weather"
assert model.with_structured_output(Colour).invoke("Name a colour.").name
did("`bind_tools`: a call, its result and the answer to it; a streamed call; `with_structured_output`")
