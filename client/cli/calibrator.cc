// SPDX-License-Identifier: Apache-2.0
#include "client/cli/calibrator.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/cli/bench_load.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr uint32_t kAnswerMost = 4000;
constexpr uint32_t kAnswerLeast = 200;
constexpr absl::Duration kBetweenLooks = absl::Milliseconds(500);
constexpr uint32_t kWindows = 3;  // A machine may stand still in one of them.

// Embeddings may be padded to a round number of rows: by less than this share.
constexpr double kPaddingMax = 0.05;

void LeaveOut(absl::string_view why) {
  std::fprintf(stderr, "  left out: %s\n", std::string(why).c_str());
}

// How many lanes decode.
double LanesOf(const client::ClusterStatus& status) {
  return static_cast<double>(
      std::count_if(status.lanes.begin(), status.lanes.end(),
                    [](const client::LaneStatus& lane) { return lane.rows > 0; }));
}

// No cluster has room for more tokens than its nodes have slots, however K and V are spread.
uint64_t SlotsOf(const client::ClusterStatus& status) {
  uint64_t slots = 0;
  for (const client::NodeStatus& node : status.nodes) {
    slots += node.slots_total;
  }
  return slots;
}

// Requests that go on until they are cancelled.
class SteadyLoad {
 public:
  SteadyLoad(client::Client& client, uint32_t rows, uint32_t context, uint32_t vocabulary,
             uint32_t answer)
      : rows_(rows), shared_(std::make_shared<Shared>()) {
    shared_->open = rows;
    for (uint32_t i = 0; i < rows; ++i) {
      client::GenerateOptions options;
      options.prompt = RandomPrompt(1, i, context, vocabulary);
      options.max_tokens = answer;
      options.ignore_eos = true;
      client.StartGenerate(
          options,
          [shared = shared_, first = true](const client::Chunk& chunk) mutable {
            if (first && !chunk.tokens.empty()) {
              first = false;
              const absl::MutexLock lock(&shared->mu);
              ++shared->decoding;
            }
          },
          [shared = shared_](const absl::Status& status) {
            const absl::MutexLock lock(&shared->mu);
            --shared->open;
            if (!absl::IsCancelled(status)) {
              shared->error.Update(status);
            }
          },
          cancellation_);
    }
  }
  ~SteadyLoad() {
    cancellation_.Cancel();
    const absl::MutexLock lock(&shared_->mu);
    shared_->mu.Await(absl::Condition(
        +[](Shared* shared) { return shared->open == 0; }, shared_.get()));
  }
  SteadyLoad(const SteadyLoad&) = delete;
  SteadyLoad& operator=(const SteadyLoad&) = delete;

  uint32_t open() const {
    const absl::MutexLock lock(&shared_->mu);
    return shared_->open;
  }
  // How many have begun to.
  uint32_t decoding() const {
    const absl::MutexLock lock(&shared_->mu);
    return shared_->decoding;
  }

  // Waits until all decode; false when they do not yet after `wait`. Errors: a request's own.
  absl::StatusOr<bool> AwaitDecoding(absl::Duration wait) {
    const absl::MutexLock lock(&shared_->mu);
    shared_->wanted = rows_;
    const bool reached = shared_->mu.AwaitWithTimeout(
        absl::Condition(
            +[](Shared* shared) {
              return shared->decoding >= shared->wanted || !shared->error.ok();
            },
            shared_.get()),
        wait);
    LAMINA_RETURN_IF_ERROR(shared_->error);
    return reached;
  }

 private:
  struct Shared {
    absl::Mutex mu;
    uint32_t open = 0;
    uint32_t decoding = 0;
    uint32_t wanted = 0;
    absl::Status error;
  };
  const uint32_t rows_;
  std::shared_ptr<Shared> shared_;
  client::Cancellation cancellation_;
};

// Waits until the whole load decodes.
// Errors: kResourceExhausted  the rest waits until the others end.
//         kDeadlineExceeded   they have not begun in time.
//         Those that requests end with come as they are.
absl::Status AwaitAll(SteadyLoad& load, client::Client& client, const CalibratorOptions& options) {
  const absl::Time end = absl::Now() + options.first_tokens_max;
  absl::Time moved = absl::Now();  // When there was last something that will end by itself.
  for (;;) {
    const absl::Duration wait = std::min(kBetweenLooks, options.no_more_after);
    LAMINA_ASSIGN_OR_RETURN(const bool all, load.AwaitDecoding(wait));
    if (all) {
      return absl::OkStatus();
    }
    LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus status, client.Status());
    const absl::Time now = absl::Now();
    if (status.waiting == 0 || status.running == 0 || load.decoding() < status.running) {
      moved = now;
    } else if (now - moved >= options.no_more_after) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the cluster runs only ", status.running,
                       " of them at once (limits.running_max, or room for K and V)"));
    }
    if (now >= end) {
      return absl::DeadlineExceededError(
          absl::StrCat(load.decoding(), " of them have begun after ",
                       absl::FormatDuration(options.first_tokens_max)));
    }
  }
}

}  // namespace

absl::Status CheckServed(const cost::ModelShape& shape, const client::ModelInfo& served) {
  const auto [fewer, more] = std::minmax({shape.vocabulary, served.vocabulary});
  // What the cluster says of K and V is of the form in which it holds them.
  const bool padded = fewer >= (1 - kPaddingMax) * more &&
                      served.kv_bytes_per_token == static_cast<uint64_t>(shape.KvBytesPerToken());
  if (shape.layers == served.layers && (fewer == more || padded)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--model: ", shape.name, " is not the model that is served: it has ", shape.layers,
      " layers, a vocabulary of ", shape.vocabulary, " and ",
      static_cast<uint64_t>(shape.KvBytesPerToken()), " bytes of K and V for a token, and ",
      served.id, " has ", served.layers, ", ", served.vocabulary, " and ",
      served.kv_bytes_per_token, "; give the files of that one"));
}

Calibrator::Calibrator(client::Client& client, const client::ModelInfo& model,
                       const cost::ModelShape& shape, const CalibratorOptions& options)
    : client_(client),
      model_(model),
      shape_(shape),
      options_(options),
      salt_(absl::StrCat("calibrate ", absl::ToUnixNanos(absl::Now()))) {}

absl::StatusOr<std::string> Calibrator::WhyNot(uint32_t rows, uint32_t context) const {
  if (context + kAnswerLeast > model_.sequence_tokens_max) {
    return "longer than the cluster takes";
  }
  for (const TooMuch& load : too_much_) {
    if (rows >= load.rows && context >= load.context) {
      return load.why;
    }
  }
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus status, client_.Status());
  const uint64_t slots = SlotsOf(status);
  return slots > 0 && uint64_t{rows} * context > slots
             ? absl::StrCat("the cluster keeps K and V of ", slots, " tokens")
             : "";
}

absl::Status Calibrator::Decode(uint32_t rows, uint32_t context) {
  LAMINA_ASSIGN_OR_RETURN(const std::string why_not, WhyNot(rows, context));
  if (!why_not.empty()) {
    LeaveOut(why_not);
    return absl::OkStatus();
  }
  const uint32_t answer = std::min(kAnswerMost, model_.sequence_tokens_max - context);
  SteadyLoad load(client_, rows, context, model_.vocabulary, answer);
  const absl::Status begun = AwaitAll(load, client_, options_);
  if (absl::IsResourceExhausted(begun) || absl::IsDeadlineExceeded(begun)) {
    LeaveOut(begun.message());
    too_much_.push_back({rows, context, std::string(begun.message())});
    return absl::OkStatus();
  }
  LAMINA_RETURN_IF_ERROR(begun);
  absl::SleepFor(options_.settle);
  std::vector<client::ClusterStatus> looks;
  for (uint32_t window = 0; window <= kWindows; ++window) {
    if (window > 0) {
      absl::SleepFor(std::max(options_.window_min, options_.measured / kWindows));
    }
    LAMINA_ASSIGN_OR_RETURN(client::ClusterStatus look, client_.Status());
    looks.push_back(std::move(look));
  }
  if (load.open() < rows) {
    LeaveOut("some answers ended before the measurement did; lower --seconds");
    return absl::OkStatus();
  }
  const client::ClusterStatus& last = looks.back();
  const bool waits = absl::c_any_of(looks, [](const auto& look) { return look.waiting > 0; });
  if (waits || last.preemptions > looks.front().preemptions) {
    LeaveOut("the cluster has no room for so many rows, and preempted some");
    return absl::OkStatus();
  }
  const double lanes = std::max(1.0, LanesOf(last));
  std::vector<CalibrationPoints> windows(kWindows);
  for (uint32_t window = 0; window < kWindows; ++window) {
    CalibrationWindow(looks[window], looks[window + 1], shape_)
        .AppendDecode(rows / lanes, lanes, windows[window]);
  }
  AppendMedians(windows, points_);
  return absl::OkStatus();
}

absl::Status Calibrator::Prompts(uint32_t tokens) {
  if (tokens + 1 > model_.sequence_tokens_max) {
    LeaveOut("longer than the cluster takes");
    return absl::OkStatus();
  }
  absl::SleepFor(options_.settle);
  LAMINA_ASSIGN_OR_RETURN(client::ClusterStatus before, client_.Status());
  std::vector<CalibrationPoints> windows(kWindows);
  uint32_t index = 0;
  bool in_one_chunk = true;
  for (CalibrationPoints& window : windows) {
    const uint32_t first = index;
    const absl::Time end = absl::Now() + options_.measured / kWindows;
    do {
      client::GenerateOptions options;
      options.prompt = RandomPrompt(2 + tokens, index++, tokens, model_.vocabulary);
      options.cache_salt = salt_;
      options.max_tokens = 1;
      LAMINA_RETURN_IF_ERROR(client_.Generate(options, [](const client::Chunk&) {}));
    } while (absl::Now() < end);
    absl::SleepFor(options_.settle);
    LAMINA_ASSIGN_OR_RETURN(client::ClusterStatus after, client_.Status());
    const CalibrationWindow counted(before, after, shape_);
    in_one_chunk = counted.AppendPrompts(tokens, index - first, window) && in_one_chunk;
    before = std::move(after);
  }
  if (!in_one_chunk) {
    LeaveOut("their slices, since a prompt ran in several chunks (prefill.chunk_tokens)");
  }
  AppendMedians(windows, points_);
  return absl::OkStatus();
}

}  // namespace lamina::cli
