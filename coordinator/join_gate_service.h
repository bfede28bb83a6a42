// SPDX-License-Identifier: Apache-2.0
//
// JoinGate: what stands before the control streams of nodes. A stream that comes is challenged, and
// until its node has proved that it knows the cluster's secret it has one of few places. So is who
// would change members.
//
// Threading: JoinGate any thread. UnprovedStream one at a time.
// Limits:    kUnprovedMax streams, each for kProofWait.

#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/cluster_secret.h"
#include "common/foreign_text.h"
#include "common/status_macros.h"
#include "common/tls.h"
#include "control/node_proof_service.h"
#include "control/tls_service.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::coordinator {

class JoinGate {
 public:
  // More than the nodes of the largest cluster, which may all come at once.
  static constexpr int kUnprovedMax = 32;
  // A node answers the challenge at once; a loaded host may be late.
  static constexpr Nanos kProofWait = Seconds(10);

  class UnprovedStream {
   public:
    explicit UnprovedStream(JoinGate& gate)
        : gate_(gate), challenge_(control::MakeChallenge(gate.secret_)) {}
    ~UnprovedStream() { gate_.unproved_.fetch_sub(1); }
    UnprovedStream(const UnprovedStream&) = delete;
    UnprovedStream& operator=(const UnprovedStream&) = delete;

    const v1::Challenge& challenge() const { return challenge_; }

    // Errors: of control::WelcomeNode().
    absl::StatusOr<v1::Welcome> Welcome(const v1::Hello& hello) const {
      return control::WelcomeNode(gate_.secret_, challenge_, hello);
    }

    // Errors: of control::CheckMember(), with the node's name.
    absl::Status CheckCertificate(const v1::Hello& hello,
                                  const grpc::ServerContextBase& context) const {
      const absl::Status checked = control::CheckMember(gate_.tls_, context, hello.name());
      return checked.ok()
                 ? checked
                 : absl::Status(checked.code(), absl::StrCat(ForeignText(hello.name(), 100), ": ",
                                                             checked.message()));
    }

    // Checks who changes members: a proof, and with TLS a certificate of the node's name, as the
    // node itself would have. Errors: those of control::CheckChange() and control::CheckMember().
    absl::Status CheckChange(const v1::MemberChange& change,
                             const grpc::ServerContextBase& context) const {
      LAMINA_RETURN_IF_ERROR(control::CheckMember(gate_.tls_, context, change.node()));
      return control::CheckChange(gate_.secret_, challenge_, change);
    }

   private:
    JoinGate& gate_;
    const v1::Challenge challenge_;
  };

  explicit JoinGate(ClusterSecret secret, TlsFiles tls = {})
      : secret_(std::move(secret)), tls_(std::move(tls)) {}
  JoinGate(const JoinGate&) = delete;
  JoinGate& operator=(const JoinGate&) = delete;

  // A place for a new stream, which the gate outlives; null when all are taken.
  std::unique_ptr<UnprovedStream> Enter() {
    if (unproved_.fetch_add(1) >= kUnprovedMax) {
      unproved_.fetch_sub(1);
      return nullptr;
    }
    return std::make_unique<UnprovedStream>(*this);
  }

 private:
  const ClusterSecret secret_;
  const TlsFiles tls_;
  std::atomic<int> unproved_{0};
};

}  // namespace lamina::coordinator
