// SPDX-License-Identifier: Apache-2.0
//
// Journal: the requests that the coordinator has accepted, and the tokens that it has committed, in
// a file, so that a coordinator that is killed goes on with them when it is back.
//
// Records are gathered for `gather`, then written and made durable together, by a thread of its
// own: what a coordinator that dies has committed in that time is not told, and is computed again.
// The file is made anew with what is unfinished when the journal is opened, and whenever it has
// grown to four times that.
//
// A disk that fails, is full, or does not keep up turns the journal off, with one warning: the file
// is removed, so that nobody goes on from what it does not tell, and requests are served without.
//
// Threading: any thread records, and never waits for the disk. The journal outlives its requests.
// Limits: queue_bytes_max of records that are not written yet.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/clock.h"
#include "coordinator/journal_disk.h"
#include "coordinator/journal_record.h"
#include "coordinator/request.h"

namespace lamina::coordinator {

struct JournalOptions {
  // What answers depend on besides requests: the model, and how it is served. Requests in a file
  // of another identity are not gone on with.
  std::string identity;
  Nanos gather = Millis(20);
  size_t queue_bytes_max = size_t{64} << 20;
  size_t file_bytes_min = size_t{64} << 20;  // A file of less is not made anew.
};

class Journal {
 public:
  // Errors: kInvalidArgument  the file cannot be read, or not be written, or is that of another
  //                           coordinator, which runs; says why.
  static absl::StatusOr<std::unique_ptr<Journal>> Open(std::unique_ptr<JournalDisk> disk,
                                                       JournalOptions options);
  // Writes what is left.
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // What the coordinator before has left; once.
  std::vector<UnfinishedRequest> TakeUnfinished();

  // False for good once the disk has failed: nothing is recorded any more.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  uint64_t bytes_written() const { return bytes_written_.load(std::memory_order_relaxed); }

  uint64_t NewNumber() { return next_number_.fetch_add(1, std::memory_order_relaxed); }
  void Accepted(const AcceptedRecord& record);
  void Committed(const CommittedRecord& record);
  void Ended(uint64_t number);

 private:
  struct Entry {
    uint64_t number = 0;
    std::string bytes;
    bool ends = false;
  };

  Journal(std::unique_ptr<JournalDisk> disk, JournalOptions options);
  void Add(Entry entry);
  void Run();
  // The thread's:
  absl::Status Write(const std::vector<Entry>& entries);
  absl::Status MakeAnew();
  void TurnOff(const absl::Status& why);

  const std::unique_ptr<JournalDisk> disk_;
  const JournalOptions options_;
  std::vector<UnfinishedRequest> unfinished_;
  std::atomic<uint64_t> next_number_ = 1;
  std::atomic<bool> on_ = true;
  std::atomic<uint64_t> bytes_written_ = 0;

  // The thread's once it runs: records of each request that has not ended, and the file's size.
  std::map<uint64_t, std::string> live_;
  size_t file_bytes_ = 0;
  size_t file_bytes_max_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Entry> queue_;
  size_t queue_bytes_ = 0;
  bool overflown_ = false;
  bool stopped_ = false;
  std::thread thread_;
};

// A request's part of the journal: from its acceptance to its end, which is when this goes.
//
// Threading: one thread at a time; is_recorded() any.
class JournaledRequest {
 public:
  // A new request, whose id is still to be given.
  JournaledRequest(Journal& journal, AcceptedRecord record)
      : journal_(journal), record_(std::move(record)) {}
  // One that the journal has, with so many tokens of each choice.
  JournaledRequest(Journal& journal, uint64_t number, const std::vector<uint32_t>& tokens);
  ~JournaledRequest();
  JournaledRequest(const JournaledRequest&) = delete;
  JournaledRequest& operator=(const JournaledRequest&) = delete;

  // Without effect on one that the journal has.
  void Accepted(const std::string& id);
  // The next tokens of a choice. Those that the journal has are passed over.
  void Committed(const ChoiceOutput& output);
  // It stays unfinished when this goes.
  void LeaveOpen() { recorded_ = false; }
  // It ends now, and not when this goes.
  void End();

  // Whether a coordinator that comes after this one may go on with it.
  bool is_recorded() const { return recorded_ && journal_.on(); }

 private:
  struct Choice {
    uint32_t told = 0;     // Tokens told so far,
    uint32_t written = 0;  // and how many the journal has.
  };

  Journal& journal_;
  AcceptedRecord record_;
  std::atomic<bool> recorded_ = false;
  std::vector<Choice> choices_;  // Up to the last one that was told or written.
};

// Passes all on, and records that the request was accepted, from which alone one that begins anew
// is gone on with.
class AcceptanceSink : public RequestSink {
 public:
  AcceptanceSink(std::shared_ptr<RequestSink> sink, std::shared_ptr<JournaledRequest> request)
      : sink_(std::move(sink)), request_(std::move(request)) {}

  void OnAccepted(const std::string& request_id) override {
    request_->Accepted(request_id);
    sink_->OnAccepted(request_id);
  }
  void OnOutput(ChoiceOutput output) override { sink_->OnOutput(std::move(output)); }
  void OnProgress(uint32_t tokens_done) override { sink_->OnProgress(tokens_done); }
  void OnScores(std::vector<float> logprobs, std::vector<plan::TokenRank> ranks) override {
    sink_->OnScores(std::move(logprobs), std::move(ranks));
  }
  void OnDone(const absl::Status& status) override { sink_->OnDone(status); }

 protected:
  JournaledRequest& request() { return *request_; }

 private:
  const std::shared_ptr<RequestSink> sink_;
  const std::shared_ptr<JournaledRequest> request_;
};

// Records the tokens, too.
class JournalingSink final : public AcceptanceSink {
 public:
  using AcceptanceSink::AcceptanceSink;

  void OnOutput(ChoiceOutput output) override {
    request().Committed(output);
    AcceptanceSink::OnOutput(std::move(output));
  }
};

// One of these in front of `sink`: what the journal needs of a request that asks for `spec`.
std::shared_ptr<RequestSink> RecordedSink(const GenerateSpec& spec,
                                          std::shared_ptr<RequestSink> sink,
                                          std::shared_ptr<JournaledRequest> request);

}  // namespace lamina::coordinator
