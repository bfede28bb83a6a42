// SPDX-License-Identifier: Apache-2.0
//
// CompletionHandler: the prompt's own tokens, when the answer shows them. Each prompt is tokenized,
// detokenized or scored, as it was given and as it is shown, before anything is generated.

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gateway/completion_handler.h"

namespace lamina::gateway {

void CompletionHandler::Prepare() {
  preparing_ = prompts_.size();
  for (size_t i = 0; i < prompts_.size() && writer_ != nullptr; ++i) {
    const client::Prompt& prompt = request_.prompts[i];
    if (const auto* tokens = std::get_if<std::vector<TokenId>>(&prompt); tokens != nullptr) {
      PrepareTokens(i, request_.Kept(*tokens));
    } else if (request_.chat || request_.options.prompt_tokens_max.has_value() ||
               !request_.scores_prompt()) {
      TokenizePrompt(i);
    } else {
      ScorePrompt(i, prompt);
    }
  }
}

// What the template makes of a chat's messages, and what is left of a text that is cut, is shown
// as tokens.
void CompletionHandler::TokenizePrompt(size_t index) {
  backend_.Tokenize(
      request_.prompts[index], request_.options.chat, /*add_special=*/true,
      [self = shared_from_this(), index](const absl::StatusOr<client::TokenizeResult>& result) {
        if (!result.ok() || self->writer_ == nullptr) {
          self->Prepared(result.status());
          return;
        }
        Prompt& prompt = self->prompts_[index];
        const std::vector<TokenId> kept = self->request_.Kept(result->tokens);
        if (self->request_.shows_ids_alone()) {
          prompt.ids = kept;
        }
        if (kept.size() < result->tokens.size()) {
          prompt.echo.clear();
        } else if (!self->request_.scores_prompt()) {
          prompt.tokens = static_cast<uint32_t>(kept.size());
          self->Prepared(absl::OkStatus());
          return;
        }
        self->PrepareTokens(index, kept);
      });
}

void CompletionHandler::PrepareTokens(size_t index, const std::vector<TokenId>& tokens) {
  if (request_.scores_prompt()) {
    ScorePrompt(index, tokens);
    return;
  }
  prompts_[index].tokens = static_cast<uint32_t>(tokens.size());
  if (request_.shows_ids_alone()) {
    prompts_[index].ids = tokens;
  }
  backend_.Detokenize(tokens,
                      [self = shared_from_this(), index](const absl::StatusOr<std::string>& text) {
                        if (text.ok()) {
                          self->prompts_[index].echo = *text;
                        }
                        self->Prepared(text.status());
                      });
}

void CompletionHandler::ScorePrompt(size_t index, const client::Prompt& prompt) {
  const uint32_t echoed = request_.echo && request_.logprobs ? request_.alternatives() : 0;
  prompts_[index].cancel_score = backend_.Score(
      prompt,
      {.policy = request_.options.policy,
       .kv = request_.options.kv,
       .logprobs = std::max(echoed, request_.prompt_logprobs.value_or(0))},
      [self = shared_from_this(), index](const absl::StatusOr<client::ScoreResult>& score) {
        self->prompts_[index].cancel_score = nullptr;
        if (score.ok()) {
          self->TakeScore(index, *score);
        }
        self->Prepared(score.status());
      });
}

void CompletionHandler::TakeScore(size_t index, const client::ScoreResult& score) {
  Prompt& prompt = prompts_[index];
  std::string text;
  for (size_t i = 0; i < score.tokens.size() && i < score.texts.size(); ++i) {
    ShownToken token = {.token = score.tokens[i], .text = score.texts[i]};
    if (i > 0 && i - 1 < score.logprobs.size()) {
      token.logprob = score.logprobs[i - 1];
    }
    if (i > 0 && i - 1 < score.ranks.size()) {
      token.rank = score.ranks[i - 1].rank;
      token.top = score.ranks[i - 1].top;
    }
    text += token.text;
    prompt.echo_tokens.push_back(std::move(token));
  }
  prompt.tokens = static_cast<uint32_t>(score.tokens.size());
  if (request_.shows_ids_alone()) {
    prompt.ids = score.tokens;
  }
  prompt.echo = prompt.echo.empty() ? text : prompt.echo;
  // A text does not have the special tokens that are put before it.
  prompt.echo_offset = int64_t{CountCharacters(prompt.echo)} - CountCharacters(text);
}

void CompletionHandler::Prepared(const absl::Status& status) {
  if (writer_ == nullptr) {
    return;
  }
  if (!status.ok()) {
    Fail(status);
    return;
  }
  if (--preparing_ > 0) {
    return;
  }
  if (request_.stream && request_.echo) {
    WriteEchoes();
  } else {
    Generate();
  }
}

}  // namespace lamina::gateway
