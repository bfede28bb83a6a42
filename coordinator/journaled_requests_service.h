// SPDX-License-Identifier: Apache-2.0
//
// JournaledRequests: between requests of lamina.v1 and the journal. Says which requests are
// recorded, goes on with those that the coordinator before has left, and lets their clients attach
// again.
//
// A request that was left waits until the cluster serves; then the engine prefills its prompt and
// its committed tokens, and goes on. Searches and scores begin anew. One that comes to the engine
// when nodes have just been lost, or that the cluster stops serving, waits again (resumed_sink.h).
// Its answer is kept until its client comes, or for `keep` after the start: then the request ends,
// or goes on as others do if its client is there.
//
// Threading: any; a thread of its own until nothing is left to go on with. Does not wait.
// Limits: what the journal has, which are requests that ran or waited at once.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/engine.h"
#include "coordinator/generate_call_service.h"
#include "coordinator/journal.h"
#include "coordinator/kept_answer.h"
#include "coordinator/resumed_sink.h"
#include "coordinator/score_call_service.h"
#include "lamina/v1/inference.grpc.pb.h"
#include "model/tokenizer/tokenizer.h"

namespace lamina::coordinator {

class JournaledRequests {
 public:
  // What the engine is asked by a message.
  template <typename Message>
  using SpecFunction = std::function<absl::StatusOr<GenerateSpec>(const Message&)>;
  struct SpecFunctions {
    SpecFunction<v1::GenerateRequest> generate;
    SpecFunction<v1::ScoreRequest> score;
  };

  struct Limits {
    Nanos keep = Seconds(60);
    uint32_t waiting_max = 0;  // The engine's queue takes so many.
  };

  // All references must outlive it; the journal the engine, too.
  JournaledRequests(Journal& journal, Engine& engine, const model::Tokenizer& tokenizer,
                    const Clock& clock, const Limits& limits)
      : journal_(journal), engine_(engine), tokenizer_(tokenizer), clock_(clock), limits_(limits) {}
  // Requests that the engine was not given yet stay in the journal.
  ~JournaledRequests();
  JournaledRequests(const JournaledRequests&) = delete;
  JournaledRequests& operator=(const JournaledRequests&) = delete;

  // The part of the journal that a new request has; null where the journal is off. `spec` is what
  // the message was made.
  std::shared_ptr<JournaledRequest> Begin(const v1::GenerateRequest& message,
                                          const GenerateSpec& spec);
  std::shared_ptr<JournaledRequest> Begin(const v1::ScoreRequest& message,
                                          const GenerateSpec& spec);

  // Goes on with what the journal has; once, before anybody attaches.
  void Resume(const SpecFunctions& spec_of);
  // So many, whether they have been gone on with yet or not.
  uint64_t resumed() const { return resumed_.load(std::memory_order_relaxed); }

  grpc::ServerWriteReactor<v1::GenerateResponse>* Attach(grpc::CallbackServerContext* context,
                                                         const v1::AttachRequest& request);
  // Goes once over the prompt.
  grpc::ServerWriteReactor<v1::ScoreUpdate>* AttachScore(grpc::CallbackServerContext* context,
                                                         const v1::AttachRequest& request);

  // The server ends, and with it the streams of clients that are there: a request that waits does
  // not end with its client from now on, and stays in the journal. Those of clients that have gone
  // before end.
  void LeaveOpen();

  // Ends the request of that id if the engine was not given it yet; its client is told, also if it
  // comes later. Whether there was one.
  bool Cancel(const std::string& request_id);

 private:
  struct Left {
    uint64_t key = 0;
    uint64_t number = 0;  // The journal's.
    GenerateSpec spec;    // Without `generated`, which `sink` has.
    bool with_logprobs = false;
    bool return_prompt = false;
    std::shared_ptr<JournaledRequest> journaled;
    std::shared_ptr<KeptAnswer> answer;
    std::shared_ptr<ResumedSink> sink;  // Through which the engine's words come to the answer.

    bool waits() const { return sink->state() == ResumedSink::State::kWaits; }
  };

  std::shared_ptr<JournaledRequest> MakeRequest(AcceptedRecord record, const GenerateSpec& spec);
  void Take(UnfinishedRequest unfinished, const SpecFunctions& spec_of);
  // Guarded by mutex_: the request that waits for its client. Errors: kNotFound.
  absl::StatusOr<const Left*> Find(const std::string& request_id, bool score) const;
  void Run();
  // How many the engine can be given now.
  size_t Room() const;
  // Guarded by mutex_: those that the engine does not have, in the order of their acceptance.
  std::vector<Left*> Waiting();
  // Guarded by mutex_.
  void Submit(Left& left);
  // Guarded by mutex_: whether nothing is left to do for it here.
  bool IsOver(Left& left, bool too_late);
  void ForgetThoseOver(bool too_late);

  Journal& journal_;
  Engine& engine_;
  const model::Tokenizer& tokenizer_;
  const Clock& clock_;
  const Limits limits_;
  std::atomic<uint64_t> resumed_ = 0;
  Nanos began_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Left> left_;  // By id.
  bool server_ends_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace lamina::coordinator
