// SPDX-License-Identifier: Apache-2.0
#include "model/grammar/grammar_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/units.h"
#include "model/grammar/grammar_budget.h"

namespace lamina::model {
namespace {

// The compiler of forms recurses, by some hundred bytes for each byte of a form at worst. Only
// pages that it touches take memory.
constexpr size_t kStackBytes = MiB(256);

}  // namespace

GrammarCache::GrammarCache(Maker make, Options options)
    : make_(std::move(make)), options_(options) {}

GrammarCache::~GrammarCache() {
  std::deque<std::shared_ptr<Entry>> left;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    left.swap(to_do_);
  }
  changed_.notify_all();
  if (started_) {
    pthread_join(thread_, nullptr);
  }
  for (const std::shared_ptr<Entry>& entry : left) {
    Finish(entry, absl::CancelledError("the program ends"));
  }
}

void GrammarCache::Prepare(const OutputForm& form, std::function<void(const Result&)> done,
                           std::function<bool()> gone) {
  std::unique_lock lock(mutex_);
  std::shared_ptr<Entry> entry;
  for (auto it = entries_.begin(); it != entries_.end() && entry == nullptr; ++it) {
    if ((*it)->form == form) {
      entry = *it;
      entries_.splice(entries_.begin(), entries_, it);
    }
  }
  if (entry == nullptr) {
    if (const absl::Status room = MakeRoom(); !room.ok()) {
      lock.unlock();
      if (done != nullptr) {
        done(room);
      }
      return;
    }
    entry = std::make_shared<Entry>();
    entry->form = form;
    entries_.push_front(entry);
    if (entries_.size() > options_.forms_max) {
      entries_.pop_back();  // If it is still waited for, the queue holds it.
    }
    to_do_.push_back(entry);
    changed_.notify_one();
  }
  if (done == nullptr) {
    entry->ahead = true;
    return;
  }
  if (!entry->ready) {
    entry->waiting.push_back({std::move(done), std::move(gone)});
    return;
  }
  lock.unlock();  // A result that is there does not change.
  done(entry->result);
}

GrammarCache::Result GrammarCache::Get(const OutputForm& form, ThreadBeat* beat) {
  std::promise<Result> promise;
  std::future<Result> result = promise.get_future();
  Prepare(form, [&promise](const Result& made) { promise.set_value(made); });
  const std::chrono::nanoseconds nap(ThreadBeat::kNapMost);
  while (result.wait_for(nap) == std::future_status::timeout) {
    if (beat != nullptr) {
      beat->Raise();
    }
  }
  return result.get();
}

absl::Status GrammarCache::MakeRoom() {
  if (options_.queue_max > 0 && to_do_.size() >= options_.queue_max) {
    return absl::ResourceExhaustedError(absl::StrCat(
        options_.queue_max, " forms wait to be compiled, which is the limit; try again later"));
  }
  if (started_) {
    return absl::OkStatus();
  }
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  const int error = pthread_create(&thread_, &attributes, &GrammarCache::Start, this);
  pthread_attr_destroy(&attributes);
  started_ = error == 0;
  return started_ ? absl::OkStatus()
                  : absl::ResourceExhaustedError(absl::StrCat(
                        "there is no thread to compile the form: ", std::strerror(error),
                        "; try again later"));
}

void* GrammarCache::Start(void* cache) {
  static_cast<GrammarCache*>(cache)->Run();
  return nullptr;
}

void GrammarCache::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopped_ || !to_do_.empty(); });
    if (stopped_) {
      return;
    }
    const std::shared_ptr<Entry> entry = std::move(to_do_.front());
    to_do_.pop_front();
    const bool wanted = IsWanted(*entry);
    if (!wanted) {
      entries_.remove(entry);  // Who asks for it from now on has it compiled.
    }
    lock.unlock();
    Finish(entry, wanted ? Compile(entry->form)
                         : absl::CancelledError("all who waited for the form are gone"));
    lock.lock();
  }
}

bool GrammarCache::IsWanted(const Entry& entry) {
  return entry.ahead ||
         std::any_of(entry.waiting.begin(), entry.waiting.end(),
                     [](const Waiter& waiter) { return waiter.gone == nullptr || !waiter.gone(); });
}

GrammarCache::Result GrammarCache::Compile(const OutputForm& form) {
  if (compiler_ == nullptr && make_ == nullptr) {
    return absl::UnimplementedError("output of a given form is not served here");
  }
  if (compiler_ == nullptr) {
    auto made = make_();
    if (!made.ok()) {
      return made.status();
    }
    compiler_ = *std::move(made);
  }
  const Nanos began = ThreadTime();
  Result result = compiler_->Compile(form);
  const Nanos spent = ThreadTime() - began;
  if (!result.ok()) {
    return result;
  }
  if (options_.cpu_max > 0 && spent > options_.cpu_max) {
    return absl::InvalidArgumentError(
        absl::StrCat("the form is too complex: compiling it took ", spent / 1'000'000,
                     " ms of processor time; at most ", options_.cpu_max / 1'000'000,
                     " are allowed. Use fewer repetitions and alternatives"));
  }
  if (options_.bytes_max > 0 && (*result)->bytes() > options_.bytes_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the form is too complex: compiled it has ", FormatBytes((*result)->bytes()), "; at most ",
        FormatBytes(options_.bytes_max), " are allowed. Use fewer repetitions and alternatives"));
  }
  if (options_.cpu_max > 0) {
    LAMINA_RETURN_IF_ERROR((*result)->CheckSpeed());
  }
  return result;
}

void GrammarCache::Finish(const std::shared_ptr<Entry>& entry, Result result) {
  std::vector<Waiter> waiting;
  {
    const std::lock_guard lock(mutex_);
    entry->result = std::move(result);
    entry->ready = true;
    waiting.swap(entry->waiting);
  }
  for (const Waiter& waiter : waiting) {
    waiter.done(entry->result);
  }
}

}  // namespace lamina::model
