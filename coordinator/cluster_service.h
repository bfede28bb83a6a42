// SPDX-License-Identifier: Apache-2.0
//
// ClusterService: lamina.v1.Cluster over an Engine: the coordinator's end of the nodes' streams,
// and status.
//
// Threading: gRPC's threads read; the engine's thread writes through NodePorts.

#pragma once

#include <string>

#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/tls.h"
#include "coordinator/engine.h"
#include "coordinator/join_gate_service.h"
#include "coordinator/late_streams.h"
#include "coordinator/node_stream_service.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::coordinator {

// Names of the model: its own, and the first of those by which clients ask for it.
struct ModelNames {
  std::string own;
  std::string served;
};

// Streams of nodes carry bytes, so that one plan's go to all of them.
using ClusterMethods =
    v1::Cluster::WithRawCallbackMethod_Attach<v1::Cluster::WithCallbackMethod_ChangeMembers<
        v1::Cluster::WithCallbackMethod_GetStatus<v1::Cluster::WithCallbackMethod_GetRequestMetrics<
            v1::Cluster::WithCallbackMethod_StartTrace<v1::Cluster::WithCallbackMethod_CollectTrace<
                v1::Cluster::WithCallbackMethod_ReadTrace<v1::Cluster::Service>>>>>>>;

class ClusterService final : public ClusterMethods {
 public:
  // The engine and `streams` must outlive the service and every stream. `streams` hears what nodes
  // report. Nodes prove that they know `secret`, and with `tls` show a certificate of their name.
  ClusterService(Engine& engine, LateStreams& streams, ModelNames model, const Clock& clock,
                 ClusterSecret secret, TlsFiles tls = {});

  NodeReactor* Attach(grpc::CallbackServerContext* context) override;
  grpc::ServerBidiReactor<v1::MemberChange, v1::MemberAnswer>* ChangeMembers(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerUnaryReactor* GetRequestMetrics(grpc::CallbackServerContext* context,
                                              const v1::GetRequestMetricsRequest* request,
                                              v1::GetRequestMetricsResponse* response) override;
  grpc::ServerUnaryReactor* StartTrace(grpc::CallbackServerContext* context,
                                       const v1::StartTraceRequest* request,
                                       v1::StartTraceResponse* response) override;
  grpc::ServerUnaryReactor* CollectTrace(grpc::CallbackServerContext* context,
                                         const v1::CollectTraceRequest* request,
                                         v1::CollectTraceResponse* response) override;
  grpc::ServerUnaryReactor* ReadTrace(grpc::CallbackServerContext* context,
                                      const v1::ReadTraceRequest* request,
                                      v1::ReadTraceResponse* response) override;

 private:
  void Fill(const EngineStatus& status, v1::GetStatusResponse* response) const;

  Engine& engine_;
  LateStreams& streams_;
  const ModelNames model_;
  const Clock& clock_;
  const Nanos started_;
  JoinGate gate_;
};

}  // namespace lamina::coordinator
