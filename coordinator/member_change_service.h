// SPDX-License-Identifier: Apache-2.0
//
// One call of Cluster.ChangeMembers: the challenge, the change with its proof, and the engine's
// answer.
//
// Threading: gRPC's threads; the engine's thread answers.
// Limits:    those of JoinGate, until the proof has come.

#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>

#include "coordinator/engine.h"
#include "coordinator/join_gate_service.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {

using MemberChangeReactor = grpc::ServerBidiReactor<v1::MemberChange, v1::MemberAnswer>;

// Owns itself. The engine and the gate outlive the call; `unproved` is null where the gate had no
// place.
MemberChangeReactor* AnswerMemberChange(Engine& engine,
                                        std::unique_ptr<JoinGate::UnprovedStream> unproved,
                                        grpc::CallbackServerContext& context);

}  // namespace lamina::coordinator
