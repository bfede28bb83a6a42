# SPDX-License-Identifier: Apache-2.0
# requires: llama-index-llms-openai-like==0.8.1
"""LlamaIndex's OpenAILike."""
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

from client_settings import KEY, MODEL, URL, did

model = OpenAILike(model=MODEL, api_base=f"{URL}/v1", api_key=KEY, is_chat_model=True, max_tokens=20, temperature=0)
chat = [ChatMessage(role="user", content="Name a colour.")]
whole = model.chat(chat).message.content
assert "".join(piece.delta or "" for piece in model.stream_chat(chat)) == whole
did("`chat` and `stream_chat`, alike")
