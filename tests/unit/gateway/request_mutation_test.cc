// SPDX-License-Identifier: Apache-2.0
//
// Bodies that are nearly right: seeded mutations of good ones. Whatever comes, there is an answer,
// and a refusal is a well-formed error.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "gateway/api_error.h"
#include "gateway/completion_request.h"

namespace lamina::gateway {
namespace {

constexpr int kRounds = 20000;

const std::vector<std::string>& Bodies() {
  static const auto* bodies = new std::vector<std::string>{
      R"({"model":"m","prompt":["a","bé\u00e9"],"max_tokens":5,"temperature":0.5,"stop":["x"],"n":2})",
      R"({"model":"m","prompt":[1,2,30000],"logit_bias":{"5":-1.5e1},"stream":true,"stream_options":{"include_usage":true}})",
      R"({"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"t"}]}],"logprobs":true,"top_logprobs":3})",
      R"({"model":"m","prompt":[[1],[2,3]],"echo":true,"max_tokens":0,"seed":-9,"response_format":{"type":"text"},"user":"u"})"};
  return *bodies;
}

// Pieces that JSON's grammar and our limits care about.
const std::vector<std::string>& Pieces() {
  static const auto* pieces = new std::vector<std::string>{"null",
                                                           "true",
                                                           "[]",
                                                           "{}",
                                                           "[[",
                                                           "{\"",
                                                           "\"",
                                                           "\\u0000",
                                                           "\\ud800",
                                                           "1e999",
                                                           "-0",
                                                           "-1",
                                                           "18446744073709551616",
                                                           "9223372036854775808",
                                                           "0.1",
                                                           ",",
                                                           ":",
                                                           "\xff",
                                                           "\xC3",
                                                           "\x00",
                                                           "\"stream\":true,",
                                                           "\"n\":129,",
                                                           "\"suffix\":\"\",",
                                                           "\"prompt\":null,",
                                                           "\"stop\":\"\","};
  return *pieces;
}

std::string Mutate(std::string body, std::mt19937& random) {
  const auto below = [&random](size_t n) { return random() % n; };
  if (below(2) == 0) {  // A gentle one: another digit, or another letter.
    char& c = body[below(body.size())];
    if (absl::ascii_isalnum(static_cast<unsigned char>(c))) {
      const bool digit = absl::ascii_isdigit(static_cast<unsigned char>(c));
      c = static_cast<char>(digit ? '0' + below(10) : 'a' + below(26));
    }
    return body;
  }
  for (size_t left = 1 + below(4); left > 0 && !body.empty(); --left) {
    const size_t at = below(body.size());
    switch (below(5)) {
      case 0:
        body[at] = static_cast<char>(below(256));
        break;
      case 1:
        body.erase(at, 1 + below(8));
        break;
      case 2:
        body.insert(at, Pieces()[below(Pieces().size())]);
        break;
      case 3:
        body.insert(at, body.substr(below(body.size()), 1 + below(20)));
        break;
      default: {
        const std::string& other = Bodies()[below(Bodies().size())];
        body = body.substr(0, at) + other.substr(below(other.size()));
      }
    }
  }
  return body;
}

TEST(RequestMutationTest, EveryBodyIsTakenWithinLimitsOrRefusedByName) {
  std::mt19937 random(20240611);
  int taken = 0;
  for (int round = 0; round < kRounds; ++round) {
    const std::string body = Mutate(Bodies()[random() % Bodies().size()], random);
    const absl::StatusOr<Json> json = ParseBody(body);
    for (const bool chat : {false, true}) {
      const absl::StatusOr<CompletionRequest> request =
          !json.ok() ? json.status()
                     : (chat ? ParseChatCompletion(*json, {}) : ParseCompletion(*json, {}));
      if (request.ok()) {
        ++taken;
        EXPECT_FALSE(request->prompts.empty()) << body;
        EXPECT_LE(request->prompts.size() * *request->options.n, 128u) << body;
        EXPECT_LE(request->options.stop.size(), 16u) << body;
      } else {
        const ApiError error = ToApiError(request.status());
        EXPECT_EQ(error.http_status, 400) << body;
        EXPECT_FALSE(error.message.empty()) << body;
        EXPECT_TRUE(Json::accept(error.ToJson())) << body;
      }
    }
  }
  EXPECT_GT(taken, kRounds / 50) << "some mutations must still be good, or little was tried";
}

}  // namespace
}  // namespace lamina::gateway
