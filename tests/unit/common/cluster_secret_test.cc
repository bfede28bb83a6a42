// SPDX-License-Identifier: Apache-2.0
#include "common/cluster_secret.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <future>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "common/private_file.h"

namespace lamina {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kToken[] = "0123456789abcdef-of-a-test";

std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
  const std::string path = testing::TempDir() + "/cluster_secret_" + name;
  std::ofstream(path, std::ios::trunc) << text;
  EXPECT_EQ(chmod(path.c_str(), mode), 0);
  return path;
}

ClusterSecret SecretOf(const std::string& name, const std::string& text) {
  const absl::StatusOr<ClusterSecret> secret = ClusterSecret::Read(Write(name, text));
  EXPECT_TRUE(secret.ok()) << secret.status();
  return secret.value_or(ClusterSecret());
}

std::string Repeated(size_t count, char byte) { return std::string(count, byte); }

// RFC 4231, section 4: cases 1 to 4, 6 and 7 for SHA-256. Case 5 is of a shortened result.
TEST(HmacSha256Test, GivesTheResultsOfRfc4231) {
  struct Case {
    std::string key;
    std::string data;
    std::string mac;
  };
  std::string ascending;
  for (char byte = 1; byte <= 25; ++byte) {
    ascending.push_back(byte);
  }
  const Case cases[] = {
      {Repeated(20, '\x0b'), "Hi There",
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {"Jefe", "what do ya want for nothing?",
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {Repeated(20, '\xaa'), Repeated(50, '\xdd'),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {ascending, Repeated(50, '\xcd'),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {Repeated(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First",
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {Repeated(131, '\xaa'),
       "This is a test using a larger than block-size key and a larger than block-size data. The "
       "key needs to be hashed before being used by the HMAC algorithm.",
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(absl::BytesToHexString(HmacSha256(one.key, one.data)), one.mac) << one.data;
  }
}

TEST(ClusterSecretTest, IsTheTextOfAFileWithoutWhiteSpaceAround) {
  const ClusterSecret plain = SecretOf("plain", kToken);
  const ClusterSecret spaced = SecretOf("spaced", std::string(" \n") + kToken + "\r\n\n");

  EXPECT_TRUE(plain.is_set());
  EXPECT_TRUE(spaced.Verify(plain.Prove("test", {"a"}), "test", {"a"}));
  EXPECT_FALSE(ClusterSecret().is_set());
}

TEST(ClusterSecretTest, AMissingFileIsRefusedWithTheWayToMakeOne) {
  const absl::Status status = ClusterSecret::Read(testing::TempDir() + "/no_such_token").status();

  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("no_such_token"), HasSubstr("openssl rand -hex 32")));
}

TEST(ClusterSecretTest, AFileOpenToOthersIsRefusedWithTheMend) {
  for (const mode_t mode : {0640, 0604, 0660, 0666, 0620, 0644}) {
    const absl::Status status = ClusterSecret::Read(Write("open", kToken, mode)).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << mode;
    EXPECT_THAT(std::string(status.message()), HasSubstr("chmod 600"));
  }
  EXPECT_TRUE(ClusterSecret::Read(Write("open", kToken, 0400)).ok());
}

TEST(ClusterSecretTest, ATextOfTheWrongLengthIsRefusedAndNotShown) {
  const std::string short_by_one(ClusterSecret::kTokenBytesMin - 1, 'q');
  for (const std::string& text :
       {std::string(), std::string(" \n\t\n"), short_by_one + "  \n",
        std::string(ClusterSecret::kTokenBytesMax + 1, 'q'), std::string(1 << 20, 'q')}) {
    const absl::Status status = ClusterSecret::Read(Write("length", text)).status();

    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text.size();
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("16"), Not(HasSubstr("qqq"))));
  }
  EXPECT_TRUE(ClusterSecret::Read(Write("length", short_by_one + "q")).ok());
  std::string longest = Repeated(ClusterSecret::kTokenBytesMax, 'q');
  longest.push_back('\n');
  EXPECT_TRUE(ClusterSecret::Read(Write("length", longest)).ok());
}

TEST(ClusterSecretTest, AFolderIsNoFile) {
  const std::string path = testing::TempDir() + "/cluster_secret_folder";
  mkdir(path.c_str(), 0700);

  EXPECT_EQ(ClusterSecret::Read(path).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClusterSecretTest, APipeWithoutAWriterIsNoFile) {
  const std::string path = testing::TempDir() + "/cluster_secret_pipe";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::future<absl::Status> read =
      std::async(std::launch::async, [&path] { return ClusterSecret::Read(path).status(); });

  const bool answered = read.wait_for(std::chrono::seconds(10)) == std::future_status::ready;

  EXPECT_TRUE(answered) << "it waits for a writer";
  if (!answered) {
    close(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
  }
  EXPECT_EQ(read.get().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ClusterSecretTest, AProofIsOfOneSecretOneLabelAndEachField) {
  const ClusterSecret secret = SecretOf("one", kToken);
  const std::string proof = secret.Prove("node", {"nonce", "name"});

  EXPECT_EQ(proof.size(), ClusterSecret::kProofBytes);
  EXPECT_TRUE(secret.Verify(proof, "node", {"nonce", "name"}));
  EXPECT_FALSE(
      SecretOf("other", std::string(kToken) + "!").Verify(proof, "node", {"nonce", "name"}));
  EXPECT_FALSE(ClusterSecret().Verify(proof, "node", {"nonce", "name"}));
  EXPECT_FALSE(secret.Verify(proof, "coordinator", {"nonce", "name"}));
  EXPECT_FALSE(secret.Verify(proof, "node", {"nonce", "nama"}));
  EXPECT_FALSE(secret.Verify(proof, "node", {"name", "nonce"}));
  // These are the same bytes in a row, cut elsewhere.
  EXPECT_FALSE(secret.Verify(proof, "node", {"noncen", "ame"}));
  EXPECT_FALSE(secret.Verify(proof, "node", {"noncename"}));
  EXPECT_FALSE(secret.Verify(proof, "node", {"nonce", "name", ""}));
  EXPECT_FALSE(secret.Verify(proof.substr(0, 31), "node", {"nonce", "name"}));
  EXPECT_FALSE(secret.Verify("", "node", {"nonce", "name"}));
}

TEST(ClusterSecretTest, WithoutASecretEverybodyCanProve) {
  EXPECT_TRUE(ClusterSecret().Verify(ClusterSecret().Prove("node", {"n"}), "node", {"n"}));
}

TEST(ClusterSecretTest, NoncesDiffer) {
  const std::string nonce = DrawNonce();

  EXPECT_EQ(nonce.size(), ClusterSecret::kNonceBytes);
  EXPECT_NE(nonce, DrawNonce());
}

TEST(ClusterSecretTest, OnlyLoopbackIsServedWithoutASecret) {
  for (const char* address : {"127.0.0.1:7400", "127.3.2.1:0", "localhost:0", "[::1]:7400"}) {
    EXPECT_TRUE(RequireSecretBeyondLoopback(ClusterSecret(), "listen", address).ok()) << address;
  }
  const ClusterSecret secret = SecretOf("listen", kToken);
  for (const char* address :
       {"0.0.0.0:7400", "[::]:7400", "192.0.2.1:7400", "127.example.org:1", "host:0", "nonsense"}) {
    const absl::Status status = RequireSecretBeyondLoopback(ClusterSecret(), "listen", address);

    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << address;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("listen"), HasSubstr(address), HasSubstr("cluster_token_file")));
    EXPECT_TRUE(RequireSecretBeyondLoopback(secret, "listen", address).ok()) << address;
  }
}

TEST(PrivateFileTest, RootMayHandASecretToAGroup) {
  constexpr uid_t kUser = 10001;
  EXPECT_TRUE(IsPrivate(0600, kUser, kUser));
  EXPECT_TRUE(IsPrivate(0440, 0, kUser));
  EXPECT_TRUE(IsPrivate(0640, 0, kUser));
  for (const mode_t open : {0460, 0444, 0441, 0450}) {
    EXPECT_FALSE(IsPrivate(open, 0, kUser)) << open;
  }
  EXPECT_FALSE(IsPrivate(0640, kUser, kUser)) << "its group was not root's choice";
  EXPECT_FALSE(IsPrivate(0640, 0, 0));
}

}  // namespace
}  // namespace lamina
