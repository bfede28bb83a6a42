// SPDX-License-Identifier: Apache-2.0
//
// The orders of service: first come first served, and priority.

#include "coordinator/core/service_order.h"

namespace lamina::core {
namespace {

class FirstComeFirstServed final : public ServiceOrder {
 public:
  absl::string_view name() const override { return "fcfs"; }
  bool Before(const SequenceRequest&, uint64_t arrival_a, const SequenceRequest&,
              uint64_t arrival_b) const override {
    return arrival_a < arrival_b;
  }
};

class PriorityOrder final : public ServiceOrder {
 public:
  absl::string_view name() const override { return "priority"; }
  bool Before(const SequenceRequest& a, uint64_t arrival_a, const SequenceRequest& b,
              uint64_t arrival_b) const override {
    return a.priority != b.priority ? a.priority > b.priority : arrival_a < arrival_b;
  }
};

}  // namespace

std::unique_ptr<ServiceOrder> MakeFirstComeFirstServed() {
  return std::make_unique<FirstComeFirstServed>();
}

std::unique_ptr<ServiceOrder> MakePriorityOrder() { return std::make_unique<PriorityOrder>(); }

}  // namespace lamina::core
