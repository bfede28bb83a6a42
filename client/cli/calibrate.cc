// SPDX-License-Identifier: Apache-2.0
//
// lamina calibrate: times of slices and attentions of a running cluster, as a calibration file.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/cli/bench_load.h"
#include "client/cli/calibration_points.h"
#include "client/cli/command.h"
#include "client/cli/plan_files.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] =
    R"(  lamina calibrate --model models/smollm2-135m-instruct.gguf --out calibration.json
  lamina plan --model M --load rate=5,input=512,output=128 --calibration DEVICE=calibration.json
The cluster should have nothing else to do. Rows decode at several numbers and lengths, and prompts
run by themselves; what nodes counted meanwhile becomes the curves of the file: slices, LM head, attention, what waits
for memory nodes cost, and links as the cluster measured them. About two minutes.
)";

constexpr absl::Duration kSettle = absl::Milliseconds(1500);  // Counters come twice a second.
constexpr absl::Duration kFirstTokens = absl::Seconds(120);
constexpr uint32_t kAnswerMost = 4000;
constexpr uint32_t kAnswerLeast = 200;
constexpr uint32_t kChunkTokens = 512;  // The default of prefill.chunk_tokens: one chunk.

struct CalibrateFlags {
  std::string model;
  std::string device = "this host";
  std::string out;
  double seconds = 3;
};

// Requests that go on until they are cancelled.
class SteadyLoad {
 public:
  SteadyLoad(client::Client& client, uint32_t rows, uint32_t context, uint32_t vocabulary,
             uint32_t answer)
      : shared_(std::make_shared<Shared>()) {
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

  uint32_t open() const {
    const absl::MutexLock lock(&shared_->mu);
    return shared_->open;
  }

  // Until all decode. Errors: a request's own; kDeadlineExceeded.
  absl::Status AwaitDecoding(uint32_t rows) {
    const absl::MutexLock lock(&shared_->mu);
    shared_->wanted = rows;
    const bool reached = shared_->mu.AwaitWithTimeout(
        absl::Condition(
            +[](Shared* shared) {
              return shared->decoding >= shared->wanted || !shared->error.ok();
            },
            shared_.get()),
        kFirstTokens);
    LAMINA_RETURN_IF_ERROR(shared_->error);
    return reached ? absl::OkStatus()
                   : absl::DeadlineExceededError(absl::StrCat(shared_->decoding, " of ", rows,
                                                              " requests have begun after ",
                                                              absl::FormatDuration(kFirstTokens)));
  }

 private:
  struct Shared {
    absl::Mutex mu;
    uint32_t open = 0;
    uint32_t decoding = 0;
    uint32_t wanted = 0;
    absl::Status error;
  };
  std::shared_ptr<Shared> shared_;
  client::Cancellation cancellation_;
};

// How many lanes decode.
double LanesOf(const client::ClusterStatus& status) {
  return static_cast<double>(
      std::count_if(status.lanes.begin(), status.lanes.end(),
                    [](const client::LaneStatus& lane) { return lane.rows > 0; }));
}

class Calibrator {
 public:
  Calibrator(client::Client& client, const client::ModelInfo& model, const cost::ModelShape& shape,
             double seconds)
      : client_(client), model_(model), shape_(shape), seconds_(seconds) {}

  absl::Status Decode(uint32_t rows, uint32_t context) {
    if (context + kAnswerLeast > model_.sequence_tokens_max) {
      LeaveOut("longer than the cluster takes");
      return absl::OkStatus();
    }
    const uint32_t answer = std::min(kAnswerMost, model_.sequence_tokens_max - context);
    SteadyLoad load(client_, rows, context, model_.vocabulary, answer);
    LAMINA_RETURN_IF_ERROR(load.AwaitDecoding(rows));
    absl::SleepFor(kSettle);
    LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus before, client_.Status());
    absl::SleepFor(absl::Seconds(seconds_));
    LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus after, client_.Status());
    if (load.open() < rows) {
      LeaveOut("some answers ended before the measurement did; lower --seconds");
      return absl::OkStatus();
    }
    const double lanes = std::max(1.0, LanesOf(after));
    CalibrationWindow(before, after, shape_).AppendDecode(rows / lanes, lanes, points_);
    return absl::OkStatus();
  }

  // Prompts of so many tokens, one after the other.
  absl::Status Prompts(uint32_t tokens) {
    if (tokens + 1 > model_.sequence_tokens_max) {
      LeaveOut("longer than the cluster takes");
      return absl::OkStatus();
    }
    absl::SleepFor(kSettle);
    LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus before, client_.Status());
    const absl::Time end = absl::Now() + absl::Seconds(seconds_);
    uint32_t index = 0;
    do {
      client::GenerateOptions options;
      options.prompt = RandomPrompt(2 + tokens, index++, tokens, model_.vocabulary);
      options.cache_salt = salt_;
      options.max_tokens = 1;
      LAMINA_RETURN_IF_ERROR(client_.Generate(options, [](const client::Chunk&) {}));
    } while (absl::Now() < end);
    absl::SleepFor(kSettle);
    LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus after, client_.Status());
    CalibrationWindow(before, after, shape_)
        .AppendPrompts(tokens, index, tokens <= kChunkTokens, points_);
    return absl::OkStatus();
  }

  const CalibrationPoints& points() const { return points_; }

 private:
  static void LeaveOut(const char* why) { std::fprintf(stderr, "  left out: %s\n", why); }

  client::Client& client_;
  const client::ModelInfo& model_;
  const cost::ModelShape& shape_;
  const double seconds_;
  // Prompts are those of every calibration; none of them finds K and V of an earlier one's.
  const std::string salt_ = absl::StrCat("calibrate ", absl::ToUnixNanos(absl::Now()));
  CalibrationPoints points_;
};

absl::StatusOr<Json> Measure(const CalibrateFlags& flags, client::Client& client) {
  LAMINA_ASSIGN_OR_RETURN(const cost::Catalogue catalogue, LoadCatalogue(""));
  LAMINA_ASSIGN_OR_RETURN(const cost::ModelShape shape, LoadShape(catalogue, flags.model));
  LAMINA_ASSIGN_OR_RETURN(const std::vector<client::ModelInfo> models, client.ListModels());
  if (models.empty() || models[0].vocabulary == 0) {
    return absl::FailedPreconditionError("the server names no model with a vocabulary");
  }
  Calibrator calibrator(client, models[0], shape, flags.seconds);
  constexpr std::pair<uint32_t, uint32_t> kDecode[] = {
      {1, 64}, {1, 2000}, {2, 256}, {4, 512}, {8, 128}, {16, 128}, {16, 1500}, {32, 64}, {64, 64}};
  for (const auto& [rows, context] : kDecode) {
    std::fprintf(stderr, "%u rows at %u tokens\n", rows, context);
    LAMINA_RETURN_IF_ERROR(calibrator.Decode(rows, context));
  }
  for (const uint32_t tokens : {64u, 128u, 256u, 512u, 2000u}) {
    std::fprintf(stderr, "prompts of %u tokens\n", tokens);
    LAMINA_RETURN_IF_ERROR(calibrator.Prompts(tokens));
  }
  LAMINA_ASSIGN_OR_RETURN(const client::ClusterStatus status, client.Status());
  if (calibrator.points().slices.empty()) {
    return absl::FailedPreconditionError(
        "nothing was measured: limits.sequence_tokens_max of the cluster is too small");
  }
  return CalibrationToJson(flags.device,
                           absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()),
                           shape, calibrator.points(), status);
}

int Run(const Invocation& invocation, const CalibrateFlags& flags) {
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  const absl::StatusOr<Json> json = Measure(flags, **client);
  if (!json.ok()) {
    return Fail(json.status());
  }
  if (flags.out.empty()) {
    PrintJson(*json);
    return kExitOk;
  }
  std::ofstream file(flags.out, std::ios::trunc);
  file << json->dump(1) << "\n";
  file.close();
  return file ? kExitOk
              : Fail(absl::DataLossError(absl::StrCat("--out: cannot write '", flags.out, "'")));
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command = AddCommand(
      app, invocation, "calibrate",
      "Measure a running cluster's slices and attentions, for plan and simulate", kExamples);
  const auto flags = std::make_shared<CalibrateFlags>();
  AddServerFlag(command, invocation);
  command
      ->add_option("--model", flags->model, "The files of the model that it serves: for its shape")
      ->required()
      ->type_name("MODEL");
  command->add_option("--device", flags->device, "What the file calls the device")
      ->type_name("NAME");
  command->add_option("--out", flags->out, "Write the file here (default: stdout)")
      ->type_name("FILE");
  command->add_option("--seconds", flags->seconds, "Of each measurement (default: 3)")
      ->check(Within(0.5, 60))
      ->type_name("S");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
