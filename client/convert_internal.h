// SPDX-License-Identifier: Apache-2.0
//
// Between the client's structs and the messages of lamina.v1. The only place of the client where
// fields of both are named together.

#pragma once

#include "absl/status/status.h"
#include "client/client.h"
#include "client/resumption.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"
#include "lamina/v1/cluster.pb.h"
#include "lamina/v1/inference.pb.h"

namespace lamina::client::internal {

// Code for code; gRPC and absl number them alike.
absl::Status FromGrpc(const grpc::Status& status);

v1::GenerateRequest ToProto(const GenerateOptions& options);
v1::AttachRequest ToProto(const AnswerPlace& place);
// The names by which the request is followed, as metadata of the call.
void FillMetadata(const GenerateOptions& options, grpc::ClientContext& context);
void FillChat(const std::vector<ChatMessage>& messages, const ChatOptions& options, v1::Chat& chat);
// Requires: a prompt of text or token ids.
v1::ScoreRequest ToProto(const Prompt& prompt, const ScoreOptions& options);
Chunk FromProto(const v1::GenerateResponse& response);
ScoreResult FromProto(const v1::ScoreResponse& response);
ModelInfo FromProto(const v1::Model& model);
ClusterStatus FromProto(const v1::GetStatusResponse& response);

}  // namespace lamina::client::internal
