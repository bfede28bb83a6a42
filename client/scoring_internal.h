// SPDX-License-Identifier: Apache-2.0
//
// A score of the client library: a ScoreStream call, and the calls of AttachScore that go on with
// it where its coordinator dies and journals it (resumption.h).
//
// Threading: blocks; any number at once.

#pragma once

#include "absl/status/statusor.h"
#include "client/client.h"
#include "client/waiting_answers.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::client::internal {

absl::StatusOr<ScoreResult> RunScore(v1::Inference::Stub& stub, WaitingAnswers& waiting,
                                     const v1::ScoreRequest& request,
                                     const Client::ScoreProgress& on_progress);

}  // namespace lamina::client::internal
