// SPDX-License-Identifier: Apache-2.0
#include "client/member_change.h"

#include <chrono>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "client/convert_internal.h"
#include "common/status_macros.h"
#include "control/node_proof_service.h"
#include "control/reconnect_service.h"
#include "control/tls_service.h"
#include "grpcpp/grpcpp.h"
#include "lamina/v1/cluster.grpc.pb.h"

namespace lamina::client {
namespace {

using Stream = grpc::ClientReaderWriter<v1::MemberChange, v1::MemberAnswer>;

// The status of a call that ended before its answer.
absl::Status EndOf(Stream& stream) {
  const absl::Status ended = internal::FromGrpc(stream.Finish());
  return ended.ok() ? absl::InternalError("the coordinator ended the call without an answer")
                    : ended;
}

}  // namespace

absl::StatusOr<std::string> ChangeMembers(const MemberChange& change) {
  // Whoever does not answer is explained there.
  LAMINA_RETURN_IF_ERROR(Client::Connect({.server = change.server, .tls = change.tls}).status());
  grpc::ChannelArguments arguments;
  control::SetReconnect(arguments);
  const auto channel =
      grpc::CreateCustomChannel(change.server, control::ChannelCredentials(change.tls), arguments);
  const auto stub = v1::Cluster::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::nanoseconds(kMemberChangeWait));
  const std::unique_ptr<Stream> stream = stub->ChangeMembers(&context);
  v1::MemberAnswer answer;
  if (!stream->Read(&answer)) {
    return EndOf(*stream);
  }
  v1::MemberChange message;
  message.set_kind(change.kind == MemberChangeKind::kAdd ? v1::MEMBER_CHANGE_KIND_ADD
                                                         : v1::MEMBER_CHANGE_KIND_DRAIN);
  message.set_node(change.node);
  if (const absl::Status proved = control::ProveChange(change.secret, answer.challenge(), message);
      !proved.ok()) {
    context.TryCancel();
    stream->Finish();
    return absl::Status(proved.code(), absl::StrCat("did not ask coordinator ", change.server, ": ",
                                                    proved.message()));
  }
  if (!stream->Write(message) || !stream->Read(&answer)) {
    return EndOf(*stream);
  }
  LAMINA_RETURN_IF_ERROR(internal::FromGrpc(stream->Finish()));
  return answer.done();
}

}  // namespace lamina::client
