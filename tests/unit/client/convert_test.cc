// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "client/convert_internal.h"

namespace lamina::client::internal {
namespace {

TEST(ConvertTest, KeepsEveryStatusCode) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status =
        FromGrpc(grpc::Status(static_cast<grpc::StatusCode>(code), "message"));
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), code == 0 ? "" : "message");
  }
}

TEST(ConvertTest, KeepsLogprobsThatAreThere) {
  v1::GenerateResponse response;
  response.add_tokens()->set_token(4);
  v1::TokenOutput* token = response.add_tokens();
  token->set_logprob(0.0f);
  token->add_top()->set_token(6);

  const Chunk chunk = FromProto(response);

  EXPECT_FALSE(chunk.tokens.at(0).logprob.has_value());
  EXPECT_EQ(chunk.tokens.at(1).logprob, 0.0f);
  EXPECT_EQ(chunk.tokens.at(1).top.at(0).token, 6);
}

}  // namespace
}  // namespace lamina::client::internal
