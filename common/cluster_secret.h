// SPDX-License-Identifier: Apache-2.0
//
// ClusterSecret: what the processes of one cluster know and strangers do not, and how one process
// proves to another that it knows it: HMAC-SHA256 over a nonce of the other one. The secret itself
// never leaves the process, and stands in no message, log or error.
//
// Where no secret is set, proofs are made and checked all the same, with an empty key: everybody
// can make them. So there is one handshake, and processes of which one alone has a secret do not
// take each other for members.
//
// A proof says nothing about what follows it: bytes are neither encrypted nor authenticated.
//
// Threading: values; a constant one from any thread.
// See: docs/security.md, docs/adr/0087-members-prove-a-secret.md.

#pragma once

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lamina {

class ClusterSecret {
 public:
  static constexpr size_t kTokenBytesMin = 16;
  static constexpr size_t kTokenBytesMax = 4096;
  static constexpr size_t kNonceBytes = 32;
  static constexpr size_t kProofBytes = 32;

  ClusterSecret() = default;  // None is set.

  // Reads the file, without white space around its text.
  // Errors: kNotFound          it cannot be opened.
  //         kPermissionDenied  its group or others may use it; says how to mend that.
  //         kInvalidArgument   no file, or not kTokenBytesMin to kTokenBytesMax bytes of text.
  static absl::StatusOr<ClusterSecret> Read(const std::string& path);

  bool is_set() const { return !token_.empty(); }

  // The proof of this secret over `fields`, of kProofBytes bytes. `label` names who proves what to
  // whom, so that no proof can be taken for another one. Each field counts with its length.
  std::string Prove(absl::string_view label, absl::Span<const absl::string_view> fields) const;

  // Whether `proof` is that. Cost: takes as long for each proof of kProofBytes bytes.
  bool Verify(absl::string_view proof, absl::string_view label,
              absl::Span<const absl::string_view> fields) const;

 private:
  std::string token_;
};

// kNonceBytes random bytes, drawn anew for each handshake.
std::string DrawNonce();

// HMAC of RFC 2104 with SHA-256: 32 bytes.
std::string HmacSha256(absl::string_view key, absl::string_view message);

// Without a secret nobody from elsewhere can be told from a member.
// Errors: kFailedPrecondition  no secret is set, and `address`, the value of `what`, is not one of
//                              this host's loopback interface; says what to do.
absl::Status RequireSecretBeyondLoopback(const ClusterSecret& secret, absl::string_view what,
                                         absl::string_view address);

}  // namespace lamina
