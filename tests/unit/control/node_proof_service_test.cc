// SPDX-License-Identifier: Apache-2.0
#include "control/node_proof_service.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

#include "common/version.h"

namespace lamina::control {
namespace {

class NodeProofTest : public testing::Test {
 protected:
  NodeProofTest() : secret_(SecretOf("0123456789abcdef")), challenge_(MakeChallenge(secret_)) {
    hello_.set_name("c0");
    hello_.set_role(v1::ROLE_COMPUTE);
    hello_.set_version(kVersion);
    EXPECT_TRUE(ProveNode(secret_, challenge_, hello_).ok());
  }

  static ClusterSecret SecretOf(const std::string& token) {
    const std::string path = testing::TempDir() + "/node_proof_token";
    std::ofstream(path, std::ios::trunc) << token;
    chmod(path.c_str(), 0600);
    return ClusterSecret::Read(path).value();
  }

  bool IsWelcome(const v1::Challenge& challenge, const v1::Hello& hello) const {
    const absl::Status status = WelcomeNode(secret_, challenge, hello).status();
    EXPECT_TRUE(status.ok() || absl::IsPermissionDenied(status)) << status;
    return status.ok();
  }

  const ClusterSecret secret_;
  const v1::Challenge challenge_;
  v1::Hello hello_;
};

TEST_F(NodeProofTest, EachEndAcceptsTheOthersProof) {
  const absl::StatusOr<v1::Welcome> welcome = WelcomeNode(secret_, challenge_, hello_);

  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_TRUE(CheckWelcome(secret_, challenge_, hello_, *welcome).ok());
}

TEST_F(NodeProofTest, AProofIsOfOneStreamOneNameAndOneRole) {
  v1::Hello other_name = hello_;
  other_name.set_name("c1");
  v1::Hello other_role = hello_;
  other_role.set_role(v1::ROLE_MEMORY);
  v1::Hello other_nonce = hello_;
  other_nonce.set_nonce(DrawNonce());
  v1::Hello nonce_in_name = hello_;
  nonce_in_name.set_name(hello_.nonce().substr(31) + "c0");
  nonce_in_name.set_nonce(hello_.nonce().substr(0, 31));
  v1::Hello without = hello_;
  without.clear_proof();

  EXPECT_TRUE(IsWelcome(challenge_, hello_));
  EXPECT_FALSE(IsWelcome(MakeChallenge(secret_), hello_)) << "a replay on another stream";
  EXPECT_FALSE(IsWelcome(challenge_, other_name));
  EXPECT_FALSE(IsWelcome(challenge_, other_role));
  EXPECT_FALSE(IsWelcome(challenge_, other_nonce));
  EXPECT_FALSE(IsWelcome(challenge_, nonce_in_name));
  EXPECT_FALSE(IsWelcome(challenge_, without));
}

TEST_F(NodeProofTest, AProofOfAnotherSecretIsRefusedWithoutAWordOfIt) {
  v1::Hello stranger = hello_;
  ASSERT_TRUE(ProveNode(SecretOf("fedcba9876543210"), challenge_, stranger).ok());

  const absl::Status status = WelcomeNode(secret_, challenge_, stranger).status();

  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_EQ(status.message().find("0123456789abcdef"), absl::string_view::npos);
  EXPECT_EQ(status.message().find("fedcba9876543210"), absl::string_view::npos);
}

TEST_F(NodeProofTest, TheNodesProofIsNoneOfTheCoordinator) {
  v1::Welcome reflected;
  reflected.set_proof(hello_.proof());
  const absl::StatusOr<v1::Welcome> other = WelcomeNode(secret_, challenge_, hello_);
  v1::Hello later = hello_;
  ASSERT_TRUE(ProveNode(secret_, challenge_, later).ok());

  EXPECT_FALSE(CheckWelcome(secret_, challenge_, hello_, reflected).ok());
  EXPECT_FALSE(CheckWelcome(secret_, challenge_, hello_, v1::Welcome()).ok());
  EXPECT_FALSE(CheckWelcome(secret_, challenge_, later, *other).ok()) << "a replayed welcome";
}

TEST_F(NodeProofTest, ANodeOfAnotherVersionIsToldSo) {
  v1::Hello old = hello_;
  old.set_version("0.0.1");
  old.clear_nonce();
  old.clear_proof();

  const absl::Status status = WelcomeNode(secret_, challenge_, old).status();

  EXPECT_NE(status.message().find("0.0.1"), absl::string_view::npos) << status;
}

TEST_F(NodeProofTest, AChangeOfMembersIsProvedForItsKindItsNodeAndItsCall) {
  v1::MemberChange change;
  change.set_kind(v1::MEMBER_CHANGE_KIND_DRAIN);
  change.set_node("m0");
  ASSERT_TRUE(ProveChange(secret_, challenge_, change).ok());
  EXPECT_TRUE(CheckChange(secret_, challenge_, change).ok());

  v1::MemberChange other_node = change;
  other_node.set_node("m1");
  v1::MemberChange other_kind = change;
  other_kind.set_kind(v1::MEMBER_CHANGE_KIND_ADD);
  v1::MemberChange no_proof = change;
  no_proof.clear_proof();
  for (const v1::MemberChange& wrong : {other_node, other_kind, no_proof}) {
    EXPECT_TRUE(absl::IsPermissionDenied(CheckChange(secret_, challenge_, wrong)));
  }
  EXPECT_TRUE(absl::IsPermissionDenied(CheckChange(secret_, MakeChallenge(secret_), change)));
  EXPECT_TRUE(absl::IsPermissionDenied(
      CheckChange(SecretOf("another-secret-of-another"), challenge_, change)));
}

TEST_F(NodeProofTest, ACommandWithoutTheSecretSendsNothing) {
  v1::MemberChange change;
  EXPECT_TRUE(absl::IsFailedPrecondition(ProveChange(ClusterSecret(), challenge_, change)));
  EXPECT_TRUE(change.proof().empty());
}

TEST_F(NodeProofTest, AChallengeOfTheWrongLengthIsNotAnswered) {
  v1::Challenge shortened = challenge_;
  shortened.set_nonce("short");

  EXPECT_TRUE(absl::IsInvalidArgument(ProveNode(secret_, shortened, hello_)));
}

TEST_F(NodeProofTest, WhereNobodyHasASecretEverybodyIsWelcome) {
  const ClusterSecret none;
  const v1::Challenge challenge = MakeChallenge(none);
  ASSERT_TRUE(ProveNode(none, challenge, hello_).ok());

  const absl::StatusOr<v1::Welcome> welcome = WelcomeNode(none, challenge, hello_);

  ASSERT_TRUE(welcome.ok()) << welcome.status();
  EXPECT_TRUE(CheckWelcome(none, challenge, hello_, *welcome).ok());
}

}  // namespace
}  // namespace lamina::control
