// SPDX-License-Identifier: Apache-2.0
//
// KvMakersOf: which kinds of compute nodes make K and V in an epoch. K and V of a token have other
// bits where dense layers run in another loop, so that what one epoch has made is not found in one
// whose compute nodes are of another kind.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "plan/epoch_config.h"

namespace lamina::coordinator {

// A name for them, never 0: the same for two epochs whose nodes are all of one kind, however many
// there are, and however layers and heads lie over them. Where there are several kinds, replicas
// use each other's K and V (docs/adr/0040-replicas-by-rotation.md): all of them together are one
// more kind, with the layers and the shard that each has.
uint64_t KvMakersOf(const plan::EpochConfig& config,
                    absl::FunctionRef<std::string(const std::string& node)> kind_of);

}  // namespace lamina::coordinator
