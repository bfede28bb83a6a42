// SPDX-License-Identifier: Apache-2.0
//
// The three phases of policy fetch_sparse (ALISA, alisa.txt V-A, by its equations). A row of step j
// in [0, n) has s + j tokens before it. Before p1 all of them are on the device; from then on the
// most recent ones are, and from p2 on some of those that come are recomputed:
//
//   T_j^m = K theta_j                                                                 (3)
//   0 <= theta_j <= 2k, about (s + j) r, for p1 <= j < n; before p1 theta_j = 0       (4)
//   least: T_j^c over [0, n) + T_j^m over [p1, p2) + T_j^r over [p2, n), summed up    (5)
//   0 <= p1 <= p2 <= n, 0 <= alpha <= 1, 0 <= beta <= 1                               (6)
//
// alpha is the share of the s + n tokens that are not on the device at the end: from p1 on it keeps
// the (1 - alpha)(s + n) most recent ones. theta_j is how many of a row's chosen tokens come. Half
// of these are the most recent (fetch_sparse.h), of which those that are kept do not come. Which of
// the others are kept depends on the data: as many as can be are taken to come.
//
// In (3) the paper adds the tokens that leave the device. Here K and V of every token go out in the
// step that makes them, whatever stays, the other way over the link: none is added. T_j^c is C
// times the tokens that the row attends to. T_j^r is t(l) of fetch_recompute.h, with the oldest l =
// floor(beta theta_j) of the tokens recomputed while the others come.
//
// The search divides the problem as the paper does. Memory decides on p1 and alpha: theta_j falls
// in p1 and grows in alpha, so that the largest p1 and the least alpha with room are best. beta, in
// 64ths, and p2 follow from times: what each step gains is summed up from the last one backwards.
//
// Threading: pure functions.

#pragma once

#include <cstdint>
#include <string>

namespace lamina::policy {

struct PhaseProfile {
  uint32_t prompt = 0;    // s
  uint32_t output = 0;    // n
  double ratio = 1;       // r, in (0, 1].
  uint32_t resident = 0;  // Tokens of a row for which the device has room.
  // Seconds that one token takes in one layer:
  double kv = 0;                   // K: its K and V on the link,
  double activation = 0;           // A: its activation there,
  double make = 0;                 // F: to make K and V of that,
  double attend = 0;               // C: to attend to it.
  bool keeps_activations = false;  // Where K and V come from. If not, none is recomputed.
};

struct SparsePhases {
  uint32_t p1 = 0;
  uint32_t p2 = 0;
  double alpha = 0;
  double beta = 0;
  double seconds = 0;  // (5), of one row and layer.
};

// theta_j. Requires: step < profile.output.
uint32_t ComingTokens(const PhaseProfile& profile, const SparsePhases& phases, uint32_t step);

// (5) with these p1, p2, alpha and beta; infinite where the device has no room for what is to be
// there, or p1 > p2, or p2 > n.
double PhaseSeconds(const PhaseProfile& profile, const SparsePhases& phases);

// The phases with the least (5); of several those with the latest p2, and the least beta.
// Cost: O(64 n).
SparsePhases SearchPhases(const PhaseProfile& profile);

// Bytes of one token in one layer.
struct PhaseBytes {
  double kv = 0;
  double activation = 0;
};

// For people: "80 of 1024 tokens stay (p1 = 80, alpha = 0.922), none is recomputed (p2 = n): an
// activation has 1152 bytes in a layer, K and V 768".
std::string DescribePhases(const PhaseProfile& profile, const PhaseBytes& bytes,
                           const SparsePhases& phases);

}  // namespace lamina::policy
