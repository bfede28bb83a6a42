# SPDX-License-Identifier: Apache-2.0
"""The conversations that chat templates are tested with: name -> arguments of apply_chat_template."""

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"place\" <now> & later.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Größe: naïve café ☕"},
        "days": {"type": "integer", "enum": [1, 2, 3]},
        "metric": {"type": "boolean", "default": True}}, "required": ["place"]}}}
CLOCK = {"type": "function", "function": {
    "name": "clock", "description": "", "parameters": {"type": "object", "properties": {}}}}

USER = {"role": "user", "content": "What is 2 + 2?"}
ASSISTANT = {"role": "assistant", "content": "4"}
SYSTEM = {"role": "system", "content": "You answer in one word."}


def call(name, arguments, content=""):
    return {"role": "assistant", "content": content, "tool_calls": [
        {"id": "call12345", "type": "function", "function": {"name": name, "arguments": arguments}}]}


CALLED = [
    {"role": "user", "content": "Weather in Graz?"},
    call("get_weather", {"place": "Graz", "days": 2, "metric": True, "factor": 1.5, "none": None}),
    {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": "{\"c\": 21}"}]

MESSAGES = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "And 3 + 3?"}],
    "system_turns": [SYSTEM, USER, ASSISTANT, {"role": "user", "content": "And 3 + 3?"},
                     {"role": "assistant", "content": "6"}, {"role": "user", "content": "Thanks"}],
    "assistant_last": [USER, ASSISTANT],
    "empty_content": [{"role": "user", "content": ""}],
    "empty_system": [{"role": "system", "content": ""}, USER],
    "white_space": [{"role": "system", "content": "  spaced \n"},
                    {"role": "user", "content": "\n\n\ttext\u00a0 \r\n"},
                    {"role": "assistant", "content": " a "}, {"role": "user", "content": "\u2003b\x1c"}],
    "special_characters": [{"role": "user", "content": "{{ x }} {% y %} <|im_end|> 'q' \"d\" \\n & é 漢 🎉 \x7f"}],
    "content_parts": [{"role": "user", "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]}],
    "image_part": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}],
    "two_users": [USER, {"role": "user", "content": "Well?"}],
    "assistant_first": [ASSISTANT, USER],
    "system_late": [USER, SYSTEM],
    "unknown_role": [{"role": "critic", "content": "Hm."}, USER],
    "no_content": [{"role": "user"}],
    "none_content": [USER, {"role": "assistant", "content": None}, USER],
    "extra_fields": [{"role": "user", "content": "Hi", "name": "Ada", "weight": 0.1}],
    "reasoning": [USER, {"role": "assistant", "content": "<think>\nadd\n</think>\n\n4", "reasoning_content": "add"}, USER],
}


def cases():
    for name, messages in MESSAGES.items():
        yield name, {"messages": messages, "add_generation_prompt": False}
        yield name + "+prompt", {"messages": messages, "add_generation_prompt": True}
    for tools_name, tools in (("tool", [WEATHER]), ("tools", [WEATHER, CLOCK]), ("no_tools", [])):
        for name in ("user", "system", "system_turns"):
            yield f"{name}+{tools_name}", {
                "messages": MESSAGES[name], "tools": tools, "add_generation_prompt": True}
    for tools in (None, [WEATHER]):
        yield f"called{'+tool' if tools else ''}", {
            "messages": CALLED, "tools": tools, "add_generation_prompt": True}
        yield f"answered{'+tool' if tools else ''}", {
            "messages": [SYSTEM] + CALLED + [{"role": "assistant", "content": "21 degrees."}, USER],
            "tools": tools, "add_generation_prompt": True}
    yield "called_string_arguments", {
        "messages": [USER, call("get_weather", "{\"place\": \"Graz\"}", "Let me see.")], "tools": [WEATHER],
        "add_generation_prompt": False}
    yield "documents", {"messages": [USER], "documents": [{"title": "T", "text": "body"}], "add_generation_prompt": True}
    yield "switch", {"messages": [SYSTEM, USER], "add_generation_prompt": True, "enable_thinking": False}
