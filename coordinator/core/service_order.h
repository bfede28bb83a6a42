// SPDX-License-Identifier: Apache-2.0
//
// ServiceOrder: who is served before whom.
//
// Determinism: same arguments, same answer.

#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"
#include "coordinator/core/sequence_request.h"

namespace lamina::core {

// The order in which waiting sequences are served.
class ServiceOrder {
 public:
  virtual ~ServiceOrder() = default;
  virtual absl::string_view name() const = 0;
  // Whether `a` goes before `b`; a strict weak order. Preempted sequences keep their arrival
  // number.
  virtual bool Before(const SequenceRequest& a, uint64_t arrival_a, const SequenceRequest& b,
                      uint64_t arrival_b) const = 0;
};
std::unique_ptr<ServiceOrder> MakeFirstComeFirstServed();
std::unique_ptr<ServiceOrder> MakePriorityOrder();  // Priority, then arrival.

}  // namespace lamina::core
