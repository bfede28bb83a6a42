// SPDX-License-Identifier: Apache-2.0
#include "common/cluster_secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/host_port.h"
#include "common/private_file.h"

namespace lamina {
namespace {

// White space around the text included.
constexpr size_t kFileBytesMax = 2 * ClusterSecret::kTokenBytesMax;

class File {
 public:
  // A pipe without a writer is refused like others, and not waited for.
  explicit File(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~File() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  int fd() const { return fd_; }

 private:
  const int fd_;
};

// The length stands before the text, so that no two lists of texts give the same bytes.
void AppendField(std::string& message, absl::string_view field) {
  const uint64_t bytes = field.size();
  for (int shift = 0; shift < 64; shift += 8) {
    message.push_back(static_cast<char>(bytes >> shift & 0xff));
  }
  message.append(field.data(), field.size());
}

std::string Transcript(absl::string_view label, absl::Span<const absl::string_view> fields) {
  std::string message;
  AppendField(message, label);
  for (const absl::string_view field : fields) {
    AppendField(message, field);
  }
  return message;
}

absl::Status CheckFile(const std::string& path, int fd) {
  struct stat about = {};
  if (fd < 0 || fstat(fd, &about) != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot open the cluster's token file '", path, "': ", std::strerror(errno),
                     "; to make one: (umask 077; openssl rand -hex 32 > '", path, "')"));
  }
  if (!S_ISREG(about.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cluster's token file '", path, "' is no file"));
  }
  if (!IsPrivate(about.st_mode, about.st_uid, geteuid())) {
    return absl::PermissionDeniedError(
        absl::StrCat("the cluster's token file '", path,
                     "' is open to its group or to others, who could join the cluster: chmod 600 '",
                     path, "', and if they may have read it make a new one"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ClusterSecret> ClusterSecret::Read(const std::string& path) {
  const File file(path);
  if (absl::Status status = CheckFile(path, file.fd()); !status.ok()) {
    return status;
  }
  std::string text(kFileBytesMax + 1, '\0');
  size_t have = 0;
  for (ssize_t got = 1; got > 0 && have < text.size(); have += static_cast<size_t>(got)) {
    got = read(file.fd(), text.data() + have, text.size() - have);
    if (got < 0) {
      return absl::InvalidArgumentError(absl::StrCat("cannot read the cluster's token file '", path,
                                                     "': ", std::strerror(errno)));
    }
  }
  text.resize(have);
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  if (token.size() < kTokenBytesMin || token.size() > kTokenBytesMax || have > kFileBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the cluster's token file '", path, "' has a token of ", token.size(), " bytes; it takes ",
        kTokenBytesMin, " to ", kTokenBytesMax, ", like those of: openssl rand -hex 32"));
  }
  ClusterSecret secret;
  secret.token_ = std::string(token);
  return secret;
}

std::string ClusterSecret::Prove(absl::string_view label,
                                 absl::Span<const absl::string_view> fields) const {
  return HmacSha256(token_, Transcript(label, fields));
}

bool ClusterSecret::Verify(absl::string_view proof, absl::string_view label,
                           absl::Span<const absl::string_view> fields) const {
  const std::string expected = Prove(label, fields);
  return proof.size() == expected.size() &&
         CRYPTO_memcmp(proof.data(), expected.data(), expected.size()) == 0;
}

std::string DrawNonce() {
  std::string nonce(ClusterSecret::kNonceBytes, '\0');
  LAMINA_CHECK(getentropy(nonce.data(), nonce.size()) == 0);
  return nonce;
}

std::string HmacSha256(absl::string_view key, absl::string_view message) {
  std::string mac(ClusterSecret::kProofBytes, '\0');
  unsigned int bytes = 0;
  // An empty key must still have an address.
  const void* const made =
      HMAC(EVP_sha256(), key.empty() ? "" : key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(message.data()), message.size(),
           reinterpret_cast<unsigned char*>(mac.data()), &bytes);
  LAMINA_CHECK(made != nullptr && bytes == mac.size());
  return mac;
}

absl::Status RequireSecretBeyondLoopback(const ClusterSecret& secret, absl::string_view what,
                                         absl::string_view address) {
  const std::optional<HostPort> parsed = ParseHostPort(address);
  if (secret.is_set() || (parsed.has_value() && IsLoopback(parsed->host))) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": ", address,
                   " can be reached from other hosts, and without a secret anybody there could "
                   "join. Make one, (umask 077; openssl rand -hex 32 > cluster.token), give every "
                   "daemon a copy as cluster_token_file of the cluster file or by "
                   "--cluster-token-file; or listen at 127.0.0.1"));
}

}  // namespace lamina
