// SPDX-License-Identifier: Apache-2.0
//
// Policy fetch_recompute from token numbers: of how many of each row's first tokens K and V are
// made again, while those of the others are on the link, by the equations of cost/token_layer.h.
//
// Threading: pure functions.

#pragma once

#include <string>

#include "cost/token_layer.h"

namespace lamina::policy {

using cost::BestTokenSplit;
using cost::kTokenTile;
using cost::TokenLayerSeconds;
using cost::TokenLoad;
using cost::TokenProfile;
using cost::TokenSplit;

// For people: "18% of tokens made from their numbers: K and V of one take 2.1 us on the link,
// making them 9.4 us, and all else of a layer on the device 310 us", or why none are; what its
// weights take, where they come.
std::string DescribeTokens(const TokenProfile& profile, double share);

}  // namespace lamina::policy
