// SPDX-License-Identifier: Apache-2.0
//
// The coordinator's end of one node's stream. A plan that goes to several nodes is encoded once,
// and the streams share its bytes.
//
// Threading: gRPC's threads read; the engine's thread writes through the stream's NodePort.

#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>

#include "coordinator/engine.h"
#include "coordinator/join_gate_service.h"
#include "coordinator/late_streams.h"
#include "plan/step_plan.h"

namespace lamina::coordinator {

// Reads encoded NodeMessages, writes encoded CoordinatorMessages.
using NodeReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// The stream goes by itself when it has ended. The engine and `streams` must outlive it.
NodeReactor* AttachNode(grpc::CallbackServerContext* context, Engine& engine, LateStreams& streams,
                        std::unique_ptr<JoinGate::UnprovedStream> unproved);

// The CoordinatorMessage with a plan, as it is sent. Cost: linear in what the plan names.
std::string EncodePlan(const plan::StepPlan& plan);

}  // namespace lamina::coordinator
