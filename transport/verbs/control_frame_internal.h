// SPDX-License-Identifier: Apache-2.0
//
// ControlFrame: what the two ends of a link say to each other over TCP. Never data.
//
//   sender                       owner of the regions
//                           <--  kChallenge nonce
//   kHello  owner, address, proof -->
//                           <--  kWelcome address, or kRefused
//   kOpen   view, region    -->
//                           <--  kOpened, or kGone
//                           <--  kClose view     the region is being destroyed
//   kClosed view            -->                  nothing more will be posted to it
//   kDrained view           -->                  and nothing is in flight
//   kDrop   view            -->                  the view is gone, drained

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "common/cluster_secret.h"
#include "transport/verbs/verbs_queue_internal.h"

namespace lamina::transport {

static_assert(std::endian::native == std::endian::little, "frames are little-endian");

enum class ControlKind : uint32_t {
  kChallenge,
  kHello,
  kWelcome,
  kRefused,
  kOpen,
  kOpened,
  kGone,
  kClose,
  kClosed,
  kDrained,
  kDrop,
};

struct ControlFrame {
  uint32_t magic = 0x3276'6d6c;  // "lmv2"; the digit is the version.
  ControlKind kind = ControlKind::kHello;
  uint64_t view = 0;    // Numbered by the sender.
  uint64_t region = 0;  // Numbered by the owner.
  std::array<uint64_t, 2> owner = {};
  QueueAddress address;
  std::array<char, ClusterSecret::kProofBytes> proof = {};  // kChallenge: the owner's nonce.
};
static_assert(sizeof(ControlFrame) == 104);
static_assert(ClusterSecret::kNonceBytes == ClusterSecret::kProofBytes);

// A challenge with a nonce drawn anew.
inline ControlFrame MakeChallenge() {
  ControlFrame challenge = {.kind = ControlKind::kChallenge};
  const std::string nonce = DrawNonce();
  std::copy(nonce.begin(), nonce.end(), challenge.proof.begin());
  return challenge;
}

// What the proof of a hello is over: the nonce, the owner, and the sender's queue pair.
inline constexpr absl::string_view kSenderLabel = "lamina verbs 2: sender";
inline std::array<absl::string_view, 3> TranscriptOf(const ControlFrame& challenge,
                                                     const ControlFrame& hello) {
  return {absl::string_view(challenge.proof.data(), challenge.proof.size()),
          absl::string_view(reinterpret_cast<const char*>(&hello.owner), sizeof hello.owner),
          absl::string_view(reinterpret_cast<const char*>(&hello.address), sizeof hello.address)};
}

inline void Prove(const ClusterSecret& secret, const ControlFrame& challenge, ControlFrame& hello) {
  const std::string proof = secret.Prove(kSenderLabel, TranscriptOf(challenge, hello));
  std::copy(proof.begin(), proof.end(), hello.proof.begin());
}

inline bool IsProved(const ClusterSecret& secret, const ControlFrame& challenge,
                     const ControlFrame& hello) {
  return secret.Verify(absl::string_view(hello.proof.data(), hello.proof.size()), kSenderLabel,
                       TranscriptOf(challenge, hello));
}

}  // namespace lamina::transport
