// SPDX-License-Identifier: Apache-2.0
//
// A generation of the client library: a Generate call, and the calls of Attach that go on with it
// where its coordinator dies and journals it (resumption.h).
//
// Threading: as of Client::StartGenerate().

#pragma once

#include "client/cancellation.h"
#include "client/client.h"
#include "client/waiting_answers.h"
#include "lamina/v1/inference.grpc.pb.h"

namespace lamina::client::internal {

// `stub` and `waiting` must live until `on_done` was called, which is last.
void StartGeneration(v1::Inference::Stub& stub, WaitingAnswers& waiting,
                     const GenerateOptions& options, ChunkFunction on_chunk, DoneFunction on_done,
                     const Cancellation& cancellation);

}  // namespace lamina::client::internal
