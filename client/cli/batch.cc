// SPDX-License-Identifier: Apache-2.0
//
// lamina batch: the requests of an OpenAI batch file, many at once, results as they come.
#include <algorithm>
#include <ctime>
#include <deque>
#include <optional>
#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "client/cli/batch_file.h"
#include "client/cli/batch_results.h"
#include "client/cli/command.h"
#include "client/cli/input.h"
#include "common/clock.h"
#include "common/remaining_time.h"
#include "common/status_macros.h"

namespace lamina::cli {
namespace {

constexpr char kExamples[] = R"(  lamina batch --input requests.jsonl --output results.jsonl
  lamina batch --input requests.jsonl --output results.jsonl --concurrency 64
A request: {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20}}
Results are appended in the order they come. Run again, it goes on with what has no result yet: what
was cut off, and what failed for reasons that pass. A request that can never be answered has a
result with status_code 400, or 404 for a model that is not served. A line that is no request with a
custom_id of its own is told and left out; with --strict nothing is answered then.
Exit status: 0 every line has a result, 1 some have none, 2 wrong usage, 130 Ctrl-C.
)";

struct BatchFlags {
  std::string input;
  std::string output;
  uint32_t concurrency = 32;
  bool strict = false;
  std::string policy;  // For all of them; empty: the cluster's own.
  std::string kv;      // As `policy`.
};

// Keeps `concurrency` requests in flight. Answers come in threads of the client library; results
// are written by the thread of Run().
class BatchRunner {
 public:
  BatchRunner(client::Client& client, std::string model, ResultFile& results)
      : client_(client), model_(std::move(model)), results_(results) {}

  absl::Status Run(const std::vector<const BatchRequest*>& requests, uint32_t concurrency,
                   const client::Cancellation& cancellation) {
    ProgressLine progress;
    const Nanos start = RealClock().Now();
    size_t next = 0;
    uint32_t in_flight = 0;
    absl::Status failure;
    while (in_flight > 0 || (next < requests.size() && !cancellation.cancelled())) {
      while (in_flight < concurrency && next < requests.size() && !cancellation.cancelled()) {
        Start(*requests[next++], cancellation);
        ++in_flight;
      }
      failure.Update(WriteOne());
      if (!failure.ok()) {
        cancellation.Cancel();  // And goes on to the last answer, which knows this runner.
      }
      --in_flight;
      Show(progress, requests.size(), ToSeconds(RealClock().Now() - start));
    }
    return failure;
  }

  uint64_t written() const { return written_; }
  uint64_t refused() const { return refused_; }
  uint64_t output_tokens() const { return output_tokens_; }
  const absl::Status& last_failure() const { return last_failure_; }

 private:
  struct Answer {
    const BatchRequest* request = nullptr;
    std::string request_id;
    std::map<uint32_t, BatchChoice> choices;
    absl::Status status;
  };

  void Start(const BatchRequest& request, const client::Cancellation& cancellation) {
    auto answer = std::make_shared<Answer>(Answer{.request = &request});
    if (!request.status.ok()) {
      answer->status = request.status;
      Done(*answer);
      return;
    }
    client_.StartGenerate(
        request.options,
        [answer](const client::Chunk& chunk) {
          answer->request_id = chunk.request_id;
          if (chunk.prompt_tokens_done > 0) {
            return;
          }
          BatchChoice& choice = answer->choices[chunk.index];
          choice.text += chunk.text;
          if (chunk.finish_reason != client::FinishReason::kNotFinished) {
            choice.finish_reason = chunk.finish_reason;
            choice.usage = chunk.usage;
          }
        },
        [this, answer](const absl::Status& status) {
          answer->status = status;
          Done(*answer);
        },
        cancellation);
  }

  void Done(Answer& answer) {
    const absl::MutexLock lock(&mu_);
    done_.push_back(std::move(answer));
  }

  absl::Status WriteOne() {
    Answer answer;
    {
      const absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &BatchRunner::HasAnswer));
      answer = std::move(done_.front());
      done_.pop_front();
    }
    if (IsTransient(answer.status)) {
      last_failure_ = answer.status;
      return absl::OkStatus();
    }
    ++written_;
    if (!answer.status.ok()) {
      ++refused_;
      return results_.Append(BatchError(*answer.request, answer.status));
    }
    for (const auto& [index, choice] : answer.choices) {
      output_tokens_ += choice.usage.completion_tokens + choice.usage.left_out_tokens;
    }
    return results_.Append(BatchResult(*answer.request, model_, answer.request_id, answer.choices,
                                       std::time(nullptr)));
  }

  bool HasAnswer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !done_.empty(); }

  void Show(ProgressLine& progress, size_t requests, double seconds) const {
    constexpr size_t kCells = 30;
    const size_t filled = kCells * written_ / std::max<size_t>(requests, 1);
    progress.Show(absl::StrFormat(
        "[%s%s] %u/%u  %.1f tokens/s  %s", std::string(filled, '#'),
        std::string(kCells - filled, '.'), written_, requests,
        static_cast<double>(output_tokens_) / std::max(seconds, 1e-9),
        RemainingTime(static_cast<double>(written_), static_cast<double>(requests), seconds)));
  }

  client::Client& client_;
  const std::string model_;
  ResultFile& results_;
  uint64_t written_ = 0;
  uint64_t refused_ = 0;
  uint64_t output_tokens_ = 0;
  absl::Status last_failure_;

  absl::Mutex mu_;
  std::deque<Answer> done_ ABSL_GUARDED_BY(mu_);
};

void PrintSummary(const Invocation& invocation, const BatchRunner& runner, size_t had, size_t left,
                  size_t left_out, double seconds) {
  const double rate = static_cast<double>(runner.output_tokens()) / std::max(seconds, 1e-9);
  if (invocation.json) {
    PrintJson({{"results", runner.written()},
               {"refused", runner.refused()},
               {"resumed", had},
               {"left", left},
               {"lines_left_out", left_out},
               {"output_tokens", runner.output_tokens()},
               {"seconds", seconds},
               {"output_tokens_per_second", rate}});
    return;
  }
  std::printf("%s\n", absl::StrFormat("%u results, %u of them refused, %u from before, %u left; %u "
                                      "tokens in %.1f s, %.1f/s",
                                      runner.written(), runner.refused(), had, left,
                                      runner.output_tokens(), seconds, rate)
                          .c_str());
}

// Else each request would be answered that the cluster does not prepare it.
absl::Status CheckWord(absl::string_view flag, const std::string& word,
                       const std::set<std::string>& known) {
  if (word.empty() || known.empty() || known.contains(word)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(flag, ": the cluster prepares ", absl::StrJoin(known, ", "), ", not ", word));
}

absl::Status CheckPolicy(const BatchFlags& flags, const client::ModelInfo& model) {
  std::set<std::string> names;
  std::set<std::string> forms;
  for (const client::Policy& prepared : model.policies) {
    names.insert(prepared.name);
    if (!prepared.kv.empty()) {  // Else the server says which one it has.
      forms.insert(prepared.kv);
    }
  }
  LAMINA_RETURN_IF_ERROR(CheckWord("--policy", flags.policy, names));
  return CheckWord("--kv", flags.kv, forms);
}

int Run(const Invocation& invocation, const BatchFlags& flags) {
  const absl::StatusOr<std::string> text = ReadTextFile(flags.input, kLoadBytesMax);
  if (!text.ok()) {
    return Fail(text.status());
  }
  BatchFile file = ParseBatch(*text);
  if (flags.strict && !file.problems.empty()) {
    return Fail(absl::InvalidArgumentError(absl::StrCat(flags.input, ": ", file.problems.front())));
  }
  for (const std::string& problem : file.problems) {
    std::fprintf(stderr, "lamina: %s: %s; left out\n", flags.input.c_str(), problem.c_str());
  }
  std::vector<BatchRequest>* const requests = &file.requests;
  ResultFile results;
  const absl::StatusOr<std::set<std::string>> had = results.Open(flags.output);
  if (!had.ok()) {
    return Fail(had.status());
  }
  std::vector<const BatchRequest*> left;
  for (const BatchRequest& request : *requests) {
    if (!had->contains(request.custom_id)) {
      left.push_back(&request);
    }
  }
  const auto client = Connect(invocation);
  if (!client.ok()) {
    return Fail(client.status());
  }
  const absl::StatusOr<std::vector<client::ModelInfo>> models = (*client)->ListModels();
  if (!models.ok() || models->empty()) {
    return Fail(models.ok() ? absl::UnavailableError("the server serves no model")
                            : models.status());
  }
  if (const absl::Status policy = CheckPolicy(flags, models->front()); !policy.ok()) {
    return Fail(policy);
  }
  for (BatchRequest& request : *requests) {
    request.options.policy = flags.policy;
    request.options.kv = flags.kv;
  }
  std::vector<std::string> names = models->front().names;
  names.push_back(models->front().id);
  CheckModels(names, *requests);
  CheckAnswers(models->front(), *requests);
  const client::Cancellation cancellation;
  const Interrupts::Scoped scoped(*invocation.interrupts,
                                  [&cancellation] { cancellation.Cancel(); });
  BatchRunner runner(**client, models->front().id, results);
  const Nanos start = RealClock().Now();
  const absl::Status ran = runner.Run(left, flags.concurrency, cancellation);
  if (!ran.ok()) {
    return Fail(ran);
  }
  const size_t unanswered = left.size() - runner.written();
  PrintSummary(invocation, runner, requests->size() - left.size(), unanswered, file.problems.size(),
               ToSeconds(RealClock().Now() - start));
  if (cancellation.cancelled()) {
    return kExitInterrupted;
  }
  if (unanswered > 0) {
    return Fail(runner.last_failure());
  }
  return file.problems.empty() ? kExitOk : kExitFailed;
}

}  // namespace

void AddBatchCommand(CLI::App& app, Invocation& invocation) {
  CLI::App* command =
      AddCommand(app, invocation, "batch", "Answer an OpenAI batch file", kExamples);
  const auto flags = std::make_shared<BatchFlags>();
  AddServerFlag(command, invocation);
  command->add_option("--input", flags->input, "Requests, one JSON object a line")
      ->required()
      ->type_name("FILE");
  command->add_option("--output", flags->output, "Results, appended; what is there is kept")
      ->required()
      ->type_name("FILE");
  command->add_option("--concurrency", flags->concurrency, "Requests in flight (default: 32)")
      ->transform(Whole(1, 4096))
      ->type_name("N");
  AddPolicyFlags(command, flags->policy, flags->kv);
  command->add_flag("--strict", flags->strict, "Answer nothing if a line is no request");
  command->callback([&invocation, flags] {
    invocation.run = [&invocation, flags] { return Run(invocation, *flags); };
  });
}

}  // namespace lamina::cli
