// SPDX-License-Identifier: Apache-2.0
#include "coordinator/journal.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/trace_context.h"

namespace lamina::coordinator {
namespace {

constexpr size_t kGrowth = 4;  // The file may have so many times what is unfinished.

absl::Status Unusable(const absl::Status& why) {
  return absl::InvalidArgumentError(
      absl::StrCat("coordinator.journal: ", why.message(),
                   "; choose another file that this user may write, or leave the key out"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(std::unique_ptr<JournalDisk> disk,
                                                       JournalOptions options) {
  const absl::StatusOr<std::string> bytes = disk->Read();
  if (!bytes.ok()) {
    return Unusable(bytes.status());
  }
  JournalContents contents = ReadJournal(*bytes);
  if (contents.bytes_cut > 0) {
    LogWarning("coordinator.journal: the last ", contents.bytes_cut, " of ", bytes->size(),
               " bytes are not as they were written, and are left out");
  }
  std::unique_ptr<Journal> journal(new Journal(std::move(disk), std::move(options)));
  if (!contents.unfinished.empty() && contents.identity != journal->options_.identity) {
    LogWarning("coordinator.journal: its ", contents.unfinished.size(),
               " unfinished requests are of another model, or of one that was served otherwise, "
               "and end");
    contents.unfinished.clear();
  }
  journal->next_number_ = contents.number_max + 1;
  for (const UnfinishedRequest& request : contents.unfinished) {
    const uint64_t number = request.accepted.number;
    std::string& records = journal->live_[number];
    records = Encode(request.accepted);
    for (uint32_t i = 0; i < request.choices.size(); ++i) {
      absl::StrAppend(&records, Encode(CommittedRecord{.number = number,
                                                       .choice = i,
                                                       .tokens = request.choices[i].tokens,
                                                       .finish = request.choices[i].ended}));
    }
  }
  journal->unfinished_ = std::move(contents.unfinished);
  if (const absl::Status made = journal->MakeAnew(); !made.ok()) {
    return Unusable(made);
  }
  journal->thread_ = std::thread([opened = journal.get()] { opened->Run(); });
  return journal;
}

Journal::Journal(std::unique_ptr<JournalDisk> disk, JournalOptions options)
    : disk_(std::move(disk)), options_(std::move(options)) {}

Journal::~Journal() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

std::vector<UnfinishedRequest> Journal::TakeUnfinished() { return std::exchange(unfinished_, {}); }

void Journal::Accepted(const AcceptedRecord& record) {
  Add({.number = record.number, .bytes = Encode(record)});
}

void Journal::Committed(const CommittedRecord& record) {
  Add({.number = record.number, .bytes = Encode(record)});
}

void Journal::Ended(uint64_t number) {
  Add({.number = number, .bytes = EncodeEnded(number), .ends = true});
}

void Journal::Add(Entry entry) {
  const std::lock_guard lock(mutex_);
  if (!on()) {
    return;
  }
  queue_bytes_ += entry.bytes.size();
  if (queue_bytes_ > options_.queue_bytes_max) {
    on_.store(false, std::memory_order_relaxed);
    overflown_ = true;
    changed_.notify_all();
    return;
  }
  queue_.push_back(std::move(entry));
  if (queue_.size() == 1) {
    changed_.notify_all();
  }
}

void Journal::Run() {
  for (bool last = false; !last;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stopped_ || overflown_ || !queue_.empty(); });
    changed_.wait_for(lock, std::chrono::nanoseconds(options_.gather),
                      [this] { return stopped_ || overflown_; });
    const std::vector<Entry> entries = std::exchange(queue_, {});
    queue_bytes_ = 0;
    last = stopped_;
    const absl::Status kept_up =
        overflown_ ? absl::ResourceExhaustedError(absl::StrCat("the disk is too slow: more than ",
                                                               options_.queue_bytes_max,
                                                               " bytes wait to be written"))
                   : absl::OkStatus();
    lock.unlock();
    const absl::Status written = kept_up.ok() ? Write(entries) : kept_up;
    if (!written.ok()) {
      TurnOff(written);
      last = true;
    }
  }
}

absl::Status Journal::Write(const std::vector<Entry>& entries) {
  if (entries.empty()) {
    return absl::OkStatus();
  }
  std::string bytes;
  for (const Entry& entry : entries) {
    bytes += entry.bytes;
    if (entry.ends) {
      live_.erase(entry.number);
    } else {
      live_[entry.number] += entry.bytes;
    }
  }
  if (file_bytes_ + bytes.size() > file_bytes_max_) {
    return MakeAnew();
  }
  LAMINA_RETURN_IF_ERROR(disk_->Append(bytes));
  LAMINA_RETURN_IF_ERROR(disk_->Sync());
  file_bytes_ += bytes.size();
  bytes_written_.fetch_add(bytes.size(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status Journal::MakeAnew() {
  std::string bytes = JournalHead(options_.identity);
  for (const auto& [number, records] : live_) {
    bytes += records;
  }
  LAMINA_RETURN_IF_ERROR(disk_->Replace(bytes));
  file_bytes_ = bytes.size();
  file_bytes_max_ = std::max(options_.file_bytes_min, kGrowth * bytes.size());
  bytes_written_.fetch_add(bytes.size(), std::memory_order_relaxed);
  return absl::OkStatus();
}

void Journal::TurnOff(const absl::Status& why) {
  on_.store(false, std::memory_order_relaxed);
  disk_->Remove();
  live_.clear();
  LogWarning("coordinator.journal: ", why.message(),
             "; the journal is off until the coordinator starts again, and requests that run when "
             "it dies are lost with it");
}

JournaledRequest::JournaledRequest(Journal& journal, uint64_t number,
                                   const std::vector<uint32_t>& tokens)
    : journal_(journal), record_{.number = number}, recorded_(true) {
  for (const uint32_t written : tokens) {
    choices_.push_back({.written = written});
  }
}

JournaledRequest::~JournaledRequest() { End(); }

void JournaledRequest::End() {
  if (recorded_.exchange(false)) {
    journal_.Ended(record_.number);
  }
}

void JournaledRequest::Accepted(const std::string& id) {
  // Metadata of gRPC, by which clients are told the id, takes no other.
  if (recorded_ || !IsRequestId(id)) {
    return;
  }
  record_.id = id;
  journal_.Accepted(record_);
  record_.message = std::string();
  recorded_ = true;
}

void JournaledRequest::Committed(const ChoiceOutput& output) {
  choices_.resize(std::max(choices_.size(), size_t{output.index} + 1));
  Choice& choice = choices_[output.index];
  const uint32_t first = choice.told;
  choice.told += static_cast<uint32_t>(output.tokens.size());
  if (!recorded_ || choice.told < choice.written) {
    return;
  }
  CommittedRecord record{.number = record_.number,
                         .choice = output.index,
                         .index = choice.written,
                         .finish = output.finish};
  const auto known = static_cast<std::ptrdiff_t>(std::max(first, choice.written) - first);
  record.tokens.assign(output.tokens.begin() + known, output.tokens.end());
  choice.written = choice.told;
  if (!record.tokens.empty() || record.finish != plan::FinishReason::kNone) {
    journal_.Committed(record);
  }
}

std::shared_ptr<RequestSink> RecordedSink(const GenerateSpec& spec,
                                          std::shared_ptr<RequestSink> sink,
                                          std::shared_ptr<JournaledRequest> request) {
  if (spec.begins_anew()) {
    return std::make_shared<AcceptanceSink>(std::move(sink), std::move(request));
  }
  return std::make_shared<JournalingSink>(std::move(sink), std::move(request));
}

}  // namespace lamina::coordinator
