// SPDX-License-Identifier: Apache-2.0
//
// How a node and the coordinator prove to each other, at the beginning of a control stream, that
// both know the cluster's secret: Challenge, Hello, Welcome of cluster.proto. Each proof is over
// both nonces and the node's role and name, so it is of no use on another stream or for another
// node; labels differ, so that neither is taken for the other's.
//
// Threading: pure functions, save that nonces are drawn.

#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/cluster_secret.h"
#include "lamina/v1/cluster.pb.h"

namespace lamina::control {

// The coordinator's first message.
v1::Challenge MakeChallenge(const ClusterSecret& secret);

// Draws the node's nonce and proves. Before: all else of the Hello is set.
// Errors: kFailedPrecondition  one of both has a secret and the other has none; says which, and
//                              what to set. The Hello must not be sent then.
//         kInvalidArgument     a nonce of the wrong length.
absl::Status ProveNode(const ClusterSecret& secret, const v1::Challenge& challenge,
                       v1::Hello& hello);

// The coordinator's answer to a Hello.
// Errors: kPermissionDenied  the proof is not that of this secret, challenge, role and name; says
//                            what the node may lack.
absl::StatusOr<v1::Welcome> WelcomeNode(const ClusterSecret& secret, const v1::Challenge& challenge,
                                        const v1::Hello& hello);

// Errors: kFailedPrecondition  the coordinator did not prove that it knows the secret.
absl::Status CheckWelcome(const ClusterSecret& secret, const v1::Challenge& challenge,
                          const v1::Hello& hello, const v1::Welcome& welcome);

// Draws the nonce and the proof of who changes members (ChangeMembers of cluster.proto): over the
// challenge's nonce, the kind of change and the node's name. All else of the change is set before.
// Errors: those of ProveNode().
absl::Status ProveChange(const ClusterSecret& secret, const v1::Challenge& challenge,
                         v1::MemberChange& change);

// Errors: kPermissionDenied  the proof is not that of this secret, challenge, kind and node; says
//                            what the caller may lack.
absl::Status CheckChange(const ClusterSecret& secret, const v1::Challenge& challenge,
                         const v1::MemberChange& change);

}  // namespace lamina::control
