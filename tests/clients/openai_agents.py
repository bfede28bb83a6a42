# SPDX-License-Identifier: Apache-2.0
# requires: openai-agents==0.24.0
"""An agent that calls a function and reads its result, over chat completions."""
import agents
import openai

from client_settings import KEY, MODEL, URL, did

called = []


@agents.function_tool
def weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return f"Rain in {city}."


agents.set_tracing_disabled(True)
client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
agent = agents.Agent(name="a", instructions="Answer.", tools=[weather],
                     model=agents.OpenAIChatCompletionsModel(model=MODEL, openai_client=client),
                     model_settings=agents.ModelSettings(temperature=0, max_tokens=60, tool_choice="required",
                                                         parallel_tool_calls=False))
assert agents.Runner.run_sync(agent, "Weather in Rome?", max_turns=4).final_output
assert len(called) == 1
did("`Runner.run_sync`: a function is called, and the answer made from its result")
