// SPDX-License-Identifier: Apache-2.0
#include "gateway/api_error.h"

#include <gtest/gtest.h>

namespace lamina::gateway {
namespace {

TEST(ApiErrorTest, ABadFieldIsNamed) {
  const ApiError error = ToApiError(BadField("top_p", "invalid_type", "it is \"x\""));

  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.ToJson(),
            R"({"error":{"message":"it is \"x\"","type":"invalid_request_error","param":"top_p",)"
            R"("code":"invalid_type"}})");
}

TEST(ApiErrorTest, WhatIsUnknownIsNull) {
  EXPECT_EQ(ToApiError(absl::InternalError("x")).ToJson(),
            R"({"error":{"message":"x","type":"server_error","param":null,"code":null}})");
}

TEST(ApiErrorTest, BytesThatAreNotUtf8AreReplaced) {
  EXPECT_NE(ToApiError(absl::InternalError("a\xff")).ToJson().find("\xEF\xBF\xBD"),
            std::string::npos);
}

TEST(ApiErrorTest, CoordinatorsErrorsKeepTheirMeaning) {
  const ApiError full = ToApiError(absl::ResourceExhaustedError("full"));
  EXPECT_EQ(full.http_status, 429);
  EXPECT_EQ(full.code, "rate_limit_exceeded");
  EXPECT_GT(full.retry_after_seconds, 0);

  const ApiError away = ToApiError(absl::UnavailableError("stopping"));
  EXPECT_EQ(away.http_status, 503);
  EXPECT_GT(away.retry_after_seconds, 0);

  EXPECT_EQ(ToApiError(absl::UnimplementedError("x")).http_status, 400);
  EXPECT_EQ(ToApiError(absl::DeadlineExceededError("x")).http_status, 504);
  EXPECT_EQ(ToApiError(absl::CancelledError("x")).http_status, 499);
  EXPECT_EQ(ToApiError(absl::AlreadyExistsError("x")).http_status, 409);
}

TEST(ApiErrorTest, APromptThatIsTooLongHasOpenAisCode) {
  const ApiError error = ToApiError(absl::InvalidArgumentError(
      "the prompt has 9000 tokens; at most 8191 fit: this model's maximum context length is 8192 "
      "tokens (limits.sequence_tokens_max)"));
  EXPECT_EQ(error.code, "context_length_exceeded");
}

TEST(ApiErrorTest, AFormThatIsWrongIsThatOfItsField) {
  const absl::Status wrong = absl::InvalidArgumentError("the form of the output: no rule root");
  const ApiError error = ToApiError(NameForm(wrong, "structured_outputs"));
  EXPECT_EQ(error.param, "structured_outputs");
  EXPECT_EQ(error.code, "invalid_value");
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(ToApiError(NameForm(wrong, "")).param, "response_format");
  EXPECT_EQ(ToApiError(NameForm(absl::InvalidArgumentError("x"), "tools")).param, "");
  EXPECT_TRUE(NameForm(absl::OkStatus(), "tools").ok());
}

TEST(ApiErrorTest, AFieldIsRenamedWithWhatLiesWithinIt) {
  const absl::Status error = BadField("a[0].b", "invalid_type", "'a[0].b' is no 'a', but 'ab', a");
  const absl::Status renamed = RenameField(error, "a", "long.name");
  EXPECT_EQ(renamed.message(), "'long.name[0].b' is no 'long.name', but 'ab', a");
  EXPECT_EQ(FieldOf(renamed), "long.name[0].b");
  EXPECT_EQ(renamed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ToApiError(renamed).code, "invalid_type");
}

TEST(ApiErrorTest, ModelsAndUrlsAreNotFound) {
  const ApiError model = ToApiError(UnknownModel("x", "y, z"));
  EXPECT_EQ(model.http_status, 404);
  EXPECT_EQ(model.param, "model");
  EXPECT_EQ(model.code, "model_not_found");
  EXPECT_EQ(ToApiError(HttpError(415, "c", "m")).http_status, 415);
  EXPECT_EQ(ToApiError(HttpError(415, "c", "m")).type, "invalid_request_error");
}

}  // namespace
}  // namespace lamina::gateway
