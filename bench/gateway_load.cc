// SPDX-License-Identifier: Apache-2.0
//
// lamina-bench-gateway: the closed loop of `lamina bench --concurrency`, with the same prompts,
// over the gateway's HTTP. One thread, so that the client takes no more of the machine than it
// must.

#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "bench/flags.h"
#include "client/cli/bench_load.h"
#include "client/cli/bench_report.h"
#include "common/clock.h"

namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

struct Load {
  std::string host;
  std::string port;
  std::string model;
  uint32_t concurrency = 1;
  uint32_t requests = 32;
  uint32_t input_tokens = 128;
  uint32_t output_tokens = 64;
  uint32_t vocabulary = 49152;
};

struct Run {
  const Load load;
  boost::asio::io_context io{1};
  lamina::cli::BenchReport report{lamina::planner::Slo()};
  uint32_t next = 0;
};

// One connection: one request after the other, until there are no more.
class Worker : public std::enable_shared_from_this<Worker> {
 public:
  explicit Worker(Run& run) : run_(run), socket_(run.io) {}

  void Start(const tcp::resolver::results_type& server) {
    boost::asio::connect(socket_, server);
    socket_.set_option(tcp::no_delay(true));
    Ask();
  }

 private:
  void Ask() {
    if (run_.next == run_.load.requests) {
      return;
    }
    const auto prompt =
        lamina::cli::RandomPrompt(0, run_.next++, run_.load.input_tokens, run_.load.vocabulary);
    const std::string body = absl::StrCat(
        R"({"model":")", run_.load.model, R"(","temperature":0,"ignore_eos":true,"stream":true,)",
        R"("stream_options":{"include_usage":true},"max_tokens":)", run_.load.output_tokens,
        R"(,"prompt":[)", absl::StrJoin(prompt, ","), "]}");
    request_ = absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: bench\r\n",
                            "Content-Type: application/json\r\nContent-Length: ", body.size(),
                            "\r\n\r\n", body);
    times_ = lamina::cli::RequestTimes(lamina::RealClock().Now());
    completion_tokens_ = 0;
    done_ = false;
    unread_.clear();
    boost::asio::async_write(socket_, boost::asio::buffer(request_),
                             [self = shared_from_this()](const error_code& error, size_t) {
                               error ? self->Fail(error.message()) : self->Read();
                             });
  }

  void Read() {
    socket_.async_read_some(boost::asio::buffer(buffer_),
                            [self = shared_from_this()](const error_code& error, size_t bytes) {
                              if (error) {
                                self->Fail(error.message());
                                return;
                              }
                              self->unread_.append(self->buffer_.data(), bytes);
                              self->Parse();
                            });
  }

  // Events lie in chunks of their own, so that what stands between two empty lines has one at most.
  void Parse() {
    const lamina::Nanos now = lamina::RealClock().Now();
    for (size_t end = unread_.find("\n\n"); end != std::string::npos; end = unread_.find("\n\n")) {
      OnEvent(absl::string_view(unread_).substr(0, end), now);
      unread_.erase(0, end + 2);
    }
    if (!done_ || !absl::EndsWith(unread_, "0\r\n\r\n")) {
      Read();
      return;
    }
    times_.AddTokens(completion_tokens_ - std::min(completion_tokens_, times_.tokens()), last_);
    run_.report.AddFinished(run_.load.input_tokens, times_);
    Ask();
  }

  void OnEvent(absl::string_view event, lamina::Nanos now) {
    const size_t data = event.find("data: ");
    if (data == absl::string_view::npos) {
      return;
    }
    event.remove_prefix(data + 6);
    constexpr absl::string_view kCount = "\"completion_tokens\":";
    if (event == "[DONE]") {
      done_ = true;
    } else if (const size_t at = event.find(kCount); at != absl::string_view::npos) {
      const absl::string_view rest = event.substr(at + kCount.size());
      if (!absl::SimpleAtoi(rest.substr(0, rest.find_first_not_of("0123456789")),
                            &completion_tokens_)) {
        Fail("no count of tokens");
      }
    } else if (absl::StrContains(event, "\"finish_reason\":null")) {
      times_.AddTokens(1, now);
      last_ = now;
    }
  }

  void Fail(const std::string& why) { run_.report.AddFailed(absl::UnavailableError(why)); }

  Run& run_;
  tcp::socket socket_;
  std::string request_;
  std::array<char, 16384> buffer_;
  std::string unread_;
  lamina::cli::RequestTimes times_{0};
  lamina::Nanos last_ = 0;
  size_t completion_tokens_ = 0;
  bool done_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "The closed loop of `lamina bench --concurrency` over HTTP; prints its report as JSON");
  std::string server = "127.0.0.1:8000";
  Load load;
  app.add_option("--server", server, "host:port of the gateway");
  app.add_option("--model", load.model, "name of the model")->required();
  app.add_option("--concurrency", load.concurrency, "requests in flight");
  app.add_option("--requests", load.requests, "requests in all");
  app.add_option("--input-tokens", load.input_tokens, "of each prompt");
  app.add_option("--output-tokens", load.output_tokens, "of each answer");
  app.add_option("--vocabulary", load.vocabulary, "token ids are below");
  if (const std::optional<int> status = lamina::bench::ParseFlags(app, argc, argv)) {
    return *status;
  }
  load.host = server.substr(0, server.rfind(':'));
  load.port = server.substr(server.rfind(':') + 1);

  Run run{.load = load};
  const auto found = tcp::resolver(run.io).resolve(load.host, load.port);
  const lamina::Nanos began = lamina::RealClock().Now();
  for (uint32_t i = 0; i < load.concurrency; ++i) {
    std::make_shared<Worker>(run)->Start(found);
  }
  run.io.run();
  const double seconds = lamina::ToSeconds(lamina::RealClock().Now() - began);
  std::printf("%s\n", run.report.ToJson(seconds, {}, {}).dump().c_str());
  return run.report.failed() == 0 ? 0 : 1;
}
