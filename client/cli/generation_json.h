// SPDX-License-Identifier: Apache-2.0
//
// Choice: one answer put together from its chunks, and its JSON line.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/command.h"
#include "client/client.h"

namespace lamina::cli {

struct Choice {
  std::string request_id;
  std::string text;
  std::vector<client::TokenOutput> tokens;
  client::FinishReason finish_reason = client::FinishReason::kNotFinished;
  client::Usage usage;

  void Add(const client::Chunk& chunk);
};

// {request_id, index, text, token_ids, finish_reason, logprobs?, prompt_tokens, completion_tokens,
// ttft_ms, tpot_ms, seed, preemptions}
Json ToJson(const Choice& choice, uint32_t index);

// What a person is told below an answer that was cut: at --max-tokens (the server's default, if it
// was not given), or where the sequence may be no longer. Empty for others.
std::string CutNote(const Choice& choice, const std::optional<uint32_t>& max_tokens);

}  // namespace lamina::cli
