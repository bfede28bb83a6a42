// SPDX-License-Identifier: Apache-2.0
//
// RequestTable: the requests in flight: which sequences are theirs, the text so far, where output
// goes. Turns the scheduler's events into text, applies stop strings, counts.
//
// Threading: the engine's thread.

#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "coordinator/core/scheduler.h"
#include "coordinator/request.h"
#include "coordinator/request_metrics.h"
#include "coordinator/request_record.h"
#include "coordinator/stop_matcher.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

// Errors: kInvalidArgument  the id is longer than is allowed.
absl::Status CheckRequestId(absl::string_view request_id);

class RequestTable {
 public:
  // `vocabulary`: how many tokens the model has, which may be fewer than its tokenizer has; 0: not
  // known, taken for as many.
  RequestTable(const model::Tokenizer& tokenizer, const Clock& clock, uint32_t sequence_tokens_max,
               uint32_t vocabulary = 0);

  // Called for every request that was taken in, when it has ended. Before the first.
  void SetOnEnd(RequestEndFunction on_end) { on_end_ = std::move(on_end); }

  // Takes a request in and returns the sequences to submit, in order; not those of choices that
  // came with all of their tokens, and have ended. On error nothing was taken.
  // Errors: kInvalidArgument  names the field and its bound; the prompt's length and the limit.
  //         kAlreadyExists    the request id is in use.
  absl::StatusOr<std::vector<core::SequenceRequest>> Admit(GenerateSpec spec, uint64_t key,
                                                           std::shared_ptr<RequestSink> sink);

  // Ends a request with `status` and forgets it. Returns its sequences, for the scheduler to
  // finish.
  std::vector<plan::SequenceId> End(uint64_t key, const absl::Status& status);

  // Delivers events to sinks. Returns sequences that a stop string ended here, for the scheduler.
  std::vector<plan::SequenceId> Deliver(core::Events& events);

  // The first step that works on a sequence is planned. Unknown and repeated ones are ignored.
  void Started(plan::SequenceId sequence);

  // What logs call the request of a sequence; empty for unknown ones.
  std::string FollowedId(plan::SequenceId sequence);

  // Records of all that have not ended; their times so far.
  std::vector<RequestRecord> Running() const;

  // Tells the client how far the prompt of a sequence is. Unknown sequences are ignored.
  void Progress(plan::SequenceId sequence, uint32_t tokens_done);

  // 0 when there is none.
  uint64_t KeyOf(const std::string& request_id) const;
  bool empty() const { return requests_.empty(); }

  uint64_t finished() const { return finished_; }
  uint64_t failed() const { return failed_; }
  uint64_t tokens() const { return tokens_; }

  RequestMetrics& metrics() { return metrics_; }

 private:
  struct Choice {
    plan::SequenceId sequence = 0;
    model::StreamDecoder decoder;
    StopMatcher stops;
    ChoiceOutput pending;  // Output of the current Deliver().
    bool has_pending = false;
    bool done = false;
    uint32_t completion_tokens = 0;
    uint32_t told = 0;  // So many of these the request came with: times are those of the others.
    uint32_t cached_tokens = 0;
    uint32_t preemptions = 0;
    uint64_t seed = 0;
    Nanos started = 0;
    Nanos first_token = 0;
    Nanos last_token = 0;
  };
  struct Request {
    std::string id;
    GenerateSpec spec;
    std::shared_ptr<RequestSink> sink;
    Nanos arrived = 0;
    std::vector<Choice> choices;
    uint32_t choices_left = 0;
  };
  struct Place {
    uint64_t key = 0;
    uint32_t choice = 0;
  };

  absl::Status Check(const GenerateSpec& spec) const;
  absl::Status CheckGenerated(const GenerateSpec& spec) const;
  std::string NewId() const;
  core::SequenceRequest MakeSequence(const Request& request, uint32_t choice) const;
  Choice* Find(plan::SequenceId sequence, Request** request);
  // Tells the tokens that the request came with. Ends of choices are left to Flush().
  void TellGenerated(Request& request);
  void TellGenerated(Request& request, uint32_t index, GeneratedChoice generated);
  static void AddToken(const Request& request, Choice& choice, plan::SampledToken token);
  void TakeToken(const Request& request, Choice& choice, core::TokenEvent& event);
  static void AddText(const Request& request, Choice& choice, absl::string_view text);
  void Close(Request& request, Choice& choice, plan::FinishReason reason);
  void Flush(uint64_t key);
  RequestRecord RecordOf(const Request& request, const absl::Status& status) const;
  void Measure(const Request& request, const Choice& choice, plan::FinishReason reason);

  const model::Tokenizer& tokenizer_;
  const Clock& clock_;
  const uint32_t sequence_tokens_max_;
  const TokenId vocabulary_;  // Tokens that both the tokenizer and the model have.
  plan::SequenceId next_sequence_ = 1;
  std::map<uint64_t, Request> requests_;  // By key.
  std::map<std::string, uint64_t> ids_;
  std::map<plan::SequenceId, Place> places_;
  uint64_t finished_ = 0;
  uint64_t failed_ = 0;
  uint64_t tokens_ = 0;
  RequestMetrics metrics_;
  RequestEndFunction on_end_;
};

}  // namespace lamina::coordinator
