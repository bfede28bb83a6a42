// SPDX-License-Identifier: Apache-2.0
//
// What a client asks of the engine, and what it hears back. Free of protobuf.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/beam_params.h"
#include "common/sampling_params.h"
#include "common/trace_context.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

// So many may be asked for a prompt.
inline constexpr uint32_t kChoicesMax = 128;

// What the coordinator before this one has generated of a choice.
struct GeneratedChoice {
  std::vector<plan::SampledToken> tokens;
  plan::FinishReason ended = plan::FinishReason::kNone;  // It has ended with these already.
};

struct GenerateSpec {
  std::string request_id;   // Empty: the engine makes one.
  std::string followed_id;  // What logs of all daemons call it. Empty: the request id.
  std::optional<TraceContext> caller;
  std::vector<TokenId> prompt;
  SamplingParams sampling;  // Choice i uses seed + i.
  uint32_t max_tokens = 0;  // 0: as many as fit, at most kMaxTokensDefault.
  uint32_t min_tokens = 0;  // So many come before one that ends a choice.
  std::vector<std::string> stop;
  std::vector<TokenId> stop_tokens;
  bool ignore_eos = false;
  bool keep_special = false;   // Special tokens are part of the text.
  bool include_stop = false;   // What ends the text is part of it.
  bool return_prompt = false;  // The first output has the prompt.
  uint32_t choices = 1;
  uint32_t best = 0;  // Only so many are told, those of the highest mean log-probability; 0: all.
  BeamParams beams;   // With a width: the choices are the best answers of a beam search.
  int32_t priority = 0;
  std::string cache_salt;    // Shares K and V with requests of the same salt only (prefix_cache.h).
  std::string policy;        // One that epochs prepare. Empty: the one for those that name none.
  std::string kv;            // As `policy`, the form of its K and V: "bf16", "int8".
  std::string lossy;         // ChoiceUsage::lossy; the engine sets it.
  bool score = false;        // Log-probabilities of the prompt; generates nothing.
  uint32_t decode_from = 0;  // SequenceJoin::decode_from of a score.
  bool accepted_before = false;  // By the coordinator before: a full queue takes it nonetheless.
  // One for each choice, or empty: the request, none that begins anew, goes on behind these tokens,
  // which the sink is told first, each by itself.
  std::vector<GeneratedChoice> generated;

  // Whether a coordinator that comes later begins it anew: answers of a search come all at once,
  // and a score has no tokens behind which it could go on.
  bool begins_anew() const { return score || beams.width > 0; }
};

struct ChoiceUsage {
  uint32_t prompt_tokens = 0;
  uint32_t completion_tokens = 0;
  double ttft_ms = 0;
  double tpot_ms = 0;
  uint64_t seed = 0;
  uint32_t preemptions = 0;
  uint32_t cached_tokens = 0;  // Prompt tokens whose K and V were there already.
  std::string lossy;  // What makes the answer other than that of whole attention; empty: nothing.
  uint32_t left_out_tokens = 0;  // First choice with best: tokens of the choices that are not told.
};

// New output of one choice.
struct ChoiceOutput {
  uint32_t index = 0;
  std::string text;
  std::vector<plan::SampledToken> tokens;
  plan::FinishReason finish = plan::FinishReason::kNone;
  std::string stop;   // The stop string that ended the choice, with finish; empty: none.
  ChoiceUsage usage;  // With finish only.
};

// Where a request's output goes. Threading: all calls come from the engine's thread; they must not
// wait.
class RequestSink {
 public:
  virtual ~RequestSink() = default;
  // The request has an id and is queued.
  virtual void OnAccepted(const std::string& request_id) = 0;
  virtual void OnOutput(ChoiceOutput output) = 0;
  // A prompt that takes several steps has been worked on up to `tokens_done`.
  virtual void OnProgress(uint32_t tokens_done) = 0;
  // Log-probabilities of a score's tokens 1, 2, ... and, if sampling.logprobs asks for them, their
  // ranks.
  virtual void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) = 0;
  // The last call, once. Not OK: the request failed as a whole.
  virtual void OnDone(const absl::Status& status) = 0;
};

}  // namespace lamina::coordinator
