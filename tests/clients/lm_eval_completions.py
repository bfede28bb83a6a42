# SPDX-License-Identifier: Apache-2.0
# requires: lm-eval[api]==0.4.13
"""lm_eval's model class for completions."""
import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

from client_settings import KEY, MODEL, URL, did

os.environ["OPENAI_API_KEY"] = KEY
model = LocalCompletionsAPI(base_url=f"{URL}/v1/completions", model=MODEL, tokenizer_backend=None,
                            tokenized_requests=False, max_length=512)
until = model.generate_until([Instance(request_type="generate_until", doc={}, idx=0, arguments=(
    "The capital of France is", {"until": ["."], "max_gen_toks": 8, "temperature": 0}))])
assert until and until[0]
did("`generate_until` of `local-completions`")
