// SPDX-License-Identifier: Apache-2.0
//
// Problems for tests: with a small catalogue, and random ones.

#pragma once

#include <cmath>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "planner/configuration.h"

namespace lamina::planner {

inline cost::ModelShape SmallModel() {
  cost::ModelShape shape;
  shape.name = "small";
  shape.architecture = "llama";
  shape.layers = 24;
  shape.width = 2048;
  shape.query_heads = 16;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.hidden = 8192;
  shape.vocabulary = 32000;
  shape.positions_max = 8192;
  shape.runs = {true, "test"};
  return shape;
}

inline cost::Figure Measured(double value) { return {value, cost::Provenance::kMeasured, "here"}; }

// A device, and a rented machine with `devices` of it.
inline void AddKind(cost::Catalogue& catalogue, const std::string& name, double gigabytes,
                    double gigabytes_per_second, double teraflops, uint32_t devices, double price) {
  cost::Device device;
  device.name = name;
  device.kind = cost::DeviceKind::kCpu;
  device.runs = {true, "test"};
  device.capacity = Measured(gigabytes * 1e9);
  device.bandwidth = Measured(gigabytes_per_second * 1e9);
  device.flops["bf16"] = Measured(teraflops * 1e12);
  device.mfu = Measured(0.5);
  device.mbu_dense = Measured(0.8);
  device.mbu_attention = Measured(0.8);
  device.idle_watts = Measured(0);
  device.busy_watts = Measured(0);
  catalogue.devices.push_back(device);
  cost::Machine machine;
  machine.name = name;
  machine.device = name;
  machine.devices = devices;
  machine.link = "wire";
  machine.between = "wire";
  machine.price.kind = cost::PriceKind::kOnDemand;
  machine.price.hour = Measured(price);
  catalogue.machines.push_back(machine);
}

inline cost::Catalogue EmptyCatalogue() {
  cost::Catalogue catalogue;
  catalogue.sources["here"] = {"made up for tests", "2026-06-01"};
  catalogue.economics.currency = "USD";
  catalogue.economics.load = {0.5};
  catalogue.links.push_back({"wire", Measured(10e9), Measured(1e-5)});
  return catalogue;
}

// A seed's numbers in [0, 1): the generator of Numerical Recipes.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  double Next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 33) / 2147483648.0;
  }
  // From `least` to `most`, evenly by their logarithm.
  double Between(double least, double most) { return least * std::pow(most / least, Next()); }

 private:
  uint64_t state_;
};

}  // namespace lamina::planner
