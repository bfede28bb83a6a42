// SPDX-License-Identifier: Apache-2.0
#include "control/node_proof_service.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "common/foreign_text.h"
#include "common/status_macros.h"
#include "common/version.h"

namespace lamina::control {
namespace {

constexpr absl::string_view kNodeLabel = "lamina control stream 1: node";
constexpr absl::string_view kCoordinatorLabel = "lamina control stream 1: coordinator";
constexpr absl::string_view kChangeLabel = "lamina member change 1";
constexpr size_t kNameBytesMax = 100;  // The most bytes of a name that an error shows.

// What both proofs are over.
class Transcript {
 public:
  Transcript(const v1::Challenge& challenge, const v1::Hello& hello)
      : role_(absl::StrCat(static_cast<int>(hello.role()))),
        fields_{challenge.nonce(), hello.nonce(), role_, hello.name()} {}
  Transcript(const Transcript&) = delete;
  Transcript& operator=(const Transcript&) = delete;

  absl::Span<const absl::string_view> fields() const { return fields_; }

 private:
  const std::string role_;
  const std::array<absl::string_view, 4> fields_;
};

// What can be told before a proof is sent. `who` of the other end: "node", "command".
absl::Status CheckChallenge(const ClusterSecret& secret, const v1::Challenge& challenge,
                            absl::string_view who) {
  if (challenge.nonce().size() != ClusterSecret::kNonceBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a challenge of ", challenge.nonce().size(),
                                                   " bytes, not ", ClusterSecret::kNonceBytes));
  }
  if (challenge.has_secret() && !secret.is_set()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it asks for the cluster's secret and this ", who,
                     " has none: copy the coordinator's token file to this host, and name it as "
                     "cluster_token_file of the cluster file or by --cluster-token-file"));
  }
  if (!challenge.has_secret() && secret.is_set()) {
    return absl::FailedPreconditionError(
        absl::StrCat("it has no secret and this ", who,
                     " has one, so it may be anybody: give the coordinator the same token file "
                     "(cluster_token_file, --cluster-token-file), or neither of them one"));
  }
  return absl::OkStatus();
}

}  // namespace

v1::Challenge MakeChallenge(const ClusterSecret& secret) {
  v1::Challenge challenge;
  challenge.set_nonce(DrawNonce());
  challenge.set_has_secret(secret.is_set());
  return challenge;
}

absl::Status ProveNode(const ClusterSecret& secret, const v1::Challenge& challenge,
                       v1::Hello& hello) {
  LAMINA_RETURN_IF_ERROR(CheckChallenge(secret, challenge, "node"));
  hello.set_nonce(DrawNonce());
  hello.set_proof(secret.Prove(kNodeLabel, Transcript(challenge, hello).fields()));
  return absl::OkStatus();
}

absl::StatusOr<v1::Welcome> WelcomeNode(const ClusterSecret& secret, const v1::Challenge& challenge,
                                        const v1::Hello& hello) {
  const Transcript transcript(challenge, hello);
  if (hello.nonce().size() != ClusterSecret::kNonceBytes ||
      !secret.Verify(hello.proof(), kNodeLabel, transcript.fields())) {
    const std::string name = ForeignText(hello.name(), kNameBytesMax);
    if (hello.version() != kVersion) {
      return absl::PermissionDeniedError(
          absl::StrCat(name, " has version ", ForeignText(hello.version(), kNameBytesMax),
                       ", the coordinator has ", kVersion, "; install the same everywhere"));
    }
    return absl::PermissionDeniedError(
        absl::StrCat(name, " did not prove that it knows the cluster's secret: ",
                     secret.is_set() ? "give it the coordinator's token file (cluster_token_file, "
                                       "--cluster-token-file)"
                                     : "the coordinator has none, so give it none either"));
  }
  v1::Welcome welcome;
  welcome.set_proof(secret.Prove(kCoordinatorLabel, transcript.fields()));
  return welcome;
}

absl::Status CheckWelcome(const ClusterSecret& secret, const v1::Challenge& challenge,
                          const v1::Hello& hello, const v1::Welcome& welcome) {
  if (!secret.Verify(welcome.proof(), kCoordinatorLabel, Transcript(challenge, hello).fields())) {
    return absl::FailedPreconditionError(
        "it did not prove that it knows the cluster's secret, so it is not this cluster's "
        "coordinator: give both the same token file (cluster_token_file, --cluster-token-file)");
  }
  return absl::OkStatus();
}

absl::Status ProveChange(const ClusterSecret& secret, const v1::Challenge& challenge,
                         v1::MemberChange& change) {
  LAMINA_RETURN_IF_ERROR(CheckChallenge(secret, challenge, "command"));
  const std::string kind = absl::StrCat(static_cast<int>(change.kind()));
  const std::array<absl::string_view, 3> fields = {challenge.nonce(), kind, change.node()};
  change.set_proof(secret.Prove(kChangeLabel, fields));
  return absl::OkStatus();
}

absl::Status CheckChange(const ClusterSecret& secret, const v1::Challenge& challenge,
                         const v1::MemberChange& change) {
  const std::string kind = absl::StrCat(static_cast<int>(change.kind()));
  const std::array<absl::string_view, 3> fields = {challenge.nonce(), kind, change.node()};
  if (!secret.Verify(change.proof(), kChangeLabel, fields)) {
    return absl::PermissionDeniedError(absl::StrCat(
        "who would change members did not prove that it knows the cluster's secret: ",
        secret.is_set() ? "give the command the coordinator's token file (--cluster-token-file)"
                        : "the coordinator has none, so give the command none either"));
  }
  return absl::OkStatus();
}

}  // namespace lamina::control
