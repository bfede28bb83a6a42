// SPDX-License-Identifier: Apache-2.0
#include "client/cli/generation_json.h"

#include "absl/strings/str_cat.h"
#include "common/sampling_params.h"

namespace lamina::cli {

void Choice::Add(const client::Chunk& chunk) {
  request_id = chunk.request_id;
  text += chunk.text;
  tokens.insert(tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  if (chunk.finish_reason != client::FinishReason::kNotFinished) {
    finish_reason = chunk.finish_reason;
    usage = chunk.usage;
  }
}

std::string CutNote(const Choice& choice, const std::optional<uint32_t>& max_tokens) {
  if (choice.finish_reason != client::FinishReason::kLength) {
    return "";
  }
  const uint32_t most = max_tokens.value_or(kMaxTokensDefault);
  return choice.usage.completion_tokens >= most
             ? absl::StrCat("(cut at --max-tokens ", most, ")")
             : absl::StrCat("(cut after ", choice.usage.completion_tokens,
                            " tokens: the conversation may be no longer)");
}

Json ToJson(const Choice& choice, uint32_t index) {
  Json ids = Json::array();
  Json logprobs = Json::array();
  for (const client::TokenOutput& token : choice.tokens) {
    ids.push_back(token.token);
    if (!token.logprob.has_value()) {
      continue;
    }
    Json top = Json::array();
    for (const client::TokenLogprob& entry : token.top) {
      top.push_back({{"token", entry.token}, {"logprob", entry.logprob}});
    }
    logprobs.push_back({{"token", token.token}, {"logprob", *token.logprob}, {"top", top}});
  }
  const absl::string_view reason = client::FinishReasonName(choice.finish_reason);
  Json line = {{"request_id", choice.request_id},
               {"index", index},
               {"text", choice.text},
               {"token_ids", ids},
               {"finish_reason", std::string(reason)}};
  if (!logprobs.empty()) {
    line["logprobs"] = logprobs;
  }
  line["prompt_tokens"] = choice.usage.prompt_tokens;
  line["cached_tokens"] = choice.usage.cached_tokens;
  line["completion_tokens"] = choice.usage.completion_tokens;
  line["ttft_ms"] = choice.usage.ttft_ms;
  line["tpot_ms"] = choice.usage.tpot_ms;
  line["seed"] = choice.usage.seed;
  line["preemptions"] = choice.usage.preemptions;
  if (!choice.usage.lossy.empty()) {
    line["lossy"] = choice.usage.lossy;
  }
  return line;
}

}  // namespace lamina::cli
